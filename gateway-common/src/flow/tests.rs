extern crate std;

use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::limits::{MESSAGES, UNCOUNTED, WINDOW};

fn offer(relayed: u64, turn: u32) -> Offer {
    let framing = Framing::length(1_000_000).parts();
    let offer =
        Offer { relayed, written: 500, framing, client: 7, turn, path: LOCAL, ..Offer::default() };
    offer.sealed(1)
}

fn carried() -> Carried {
    Flow::new(1).carried
}

#[test]
fn an_offer_is_taken_when_it_has_caught_up() {
    let mut carried = carried();
    assert!(!carried.arrive(&Offer::default(), LOCAL, 100), "nothing was offered");
    assert_eq!(carried.passed, 100);
    let table = [
        (offer(99, 1), LOCAL, "bytes are on their way to the daemon"),
        (offer(101, 1), LOCAL, "more than there were"),
        (offer(100, 1), SPLICE, "another program's"),
        (offer(100, 0), LOCAL, "no turn is 0"),
        (Offer { seal: 5, ..offer(100, 1) }, LOCAL, "half written"),
        (Offer { written: 501, ..offer(100, 1) }, LOCAL, "half written"),
        (offer(100, 1).sealed(2), LOCAL, "another connection's"),
    ];
    for (wrong, path, why) in table {
        let before = carried;
        assert!(!carried.arrive(&wrong, path, 10), "{why}");
        assert_eq!((carried.passed, carried.mode()), (before.passed + 10, RELAY), "{why}");
        carried = before;
    }
    assert!(carried.arrive(&offer(100, 1), LOCAL, 10));
    assert_eq!((carried.mode(), carried.adopted(), carried.sent), (KERNEL, 1, 500));
    assert_eq!((carried.passed, carried.client), (100, 7));
    assert_eq!(carried.framing, Framing::length(1_000_000));
}

#[test]
fn an_offer_is_taken_once() {
    let mut carried = carried();
    assert!(carried.arrive(&offer(0, 1), LOCAL, 10));
    carried.redirect(10, 99);
    // The response ended with it: the next one's head is not part of the offer.
    carried.take_back(0, TakenBack::End);
    assert_eq!((carried.passed, carried.redirected, carried.last_ns), (0, 10, 99));
    assert!(!carried.arrive(&offer(0, 1), LOCAL, 30));
    assert!(carried.arrive(&offer(30, 2), LOCAL, 10));
}

#[test]
fn where_an_offer_stands_is_told_by_turn_and_mode_together() {
    let mut carried = carried();
    assert_eq!(carried.standing(0), Standing::Waiting, "nothing was offered");
    assert_eq!(carried.standing(1), Standing::Waiting);
    assert!(carried.arrive(&offer(0, 1), LOCAL, 10));
    assert_eq!(carried.standing(1), Standing::Carrying);
    carried.take_back(10, TakenBack::Credit);
    assert_eq!(carried.standing(1), Standing::Returned);
    // Offered again: what was taken is not this one.
    assert_eq!(carried.standing(2), Standing::Waiting);
    assert!(carried.arrive(&offer(10, 2), LOCAL, 10));
    assert_eq!(carried.standing(2), Standing::Carrying);
    carried.give_up();
    assert_eq!(carried.standing(2), Standing::Broken { taken: true });
    assert_eq!(carried.standing(3), Standing::Broken { taken: false }, "it is not in `carried`");
}

#[test]
fn what_a_pod_sends_twice_is_told_apart() {
    let mut carried = carried();
    // Close to the end of the numbers, so that they start again.
    let start = u32::MAX - 150;
    let at = |offset: u32| start.wrapping_add(offset);
    assert_eq!(carried.repeated(at(0), at(100), 100), Some(0), "nothing is known before it");
    carried.passed = 100;
    assert_eq!(carried.repeated(at(100), at(200), 100), Some(0));
    assert_eq!(carried.expected, at(200));
    assert_eq!(carried.repeated(at(150), at(300), 150), Some(50));
    assert_eq!(carried.repeated(at(0), at(301), 301), Some(300), "it starts before all of them");
    // None of these moves on.
    let table = [
        (at(201), at(301), 100, "nothing new"),
        (at(302), at(402), 100, "a byte is missing"),
        (at(100), at(200), 100, "it ends before"),
        (at(301), at(401), 102, "not its size"),
        (0, 0, 100, "no sequence numbers"),
    ];
    for (sequence, end, size, why) in table {
        assert_eq!(carried.repeated(sequence, end, size), None, "{why}");
        assert_eq!(carried.expected, at(301), "{why}");
    }
    assert_eq!(carried.repeated(at(301), at(401), 99), Some(0), "with the connection's end");
    assert_eq!(carried.repeated(at(400), at(401), 0), Some(0), "nothing but the end");
}

#[test]
fn what_is_given_back_is_counted_as_passed() {
    let mut carried = carried();
    assert!(carried.arrive(&offer(0, 1), LOCAL, 10));
    carried.take_back(10, TakenBack::Credit);
    assert_eq!((carried.passed, carried.redirected, carried.mode()), (10, 0, RELAY));
    assert_eq!(carried.reason, TakenBack::Credit as u32);
}

#[test]
fn bytes_have_credit_up_to_the_window() {
    let mut carried = carried();
    assert!(carried.arrive(&offer(0, 1), LOCAL, 1));
    // 500 bytes were written before, and all but 100 are acknowledged.
    assert!(carried.has_credit((WINDOW - 100) as u32, || 400));
    assert!(!carried.has_credit((WINDOW - 99) as u32, || 400));
    assert!(carried.has_credit((WINDOW - 99) as u32, || 401));
}

#[test]
fn what_is_acknowledged_is_asked_when_half_of_the_credit_is_gone() {
    let unasked = || -> u64 { panic!("it is asked") };
    let mut carried = carried();
    // With a client of its own it is not known.
    let far = Offer { written: WINDOW, ..offer(0, 1) }.sealed(1);
    assert!(carried.arrive(&far, LOCAL, 1));
    assert!(carried.has_credit(1, || WINDOW - 10));
    let half = (WINDOW / 2) as u32;
    assert!(carried.has_credit(half - 10, unasked));
    assert!(!carried.has_credit(half - 9, || 0));
    // What is known of one client is known in its next response, and of no other.
    assert!(carried.has_credit(half, || WINDOW));
    carried.take_back(1, TakenBack::Framing);
    assert!(carried.arrive(&Offer { written: WINDOW, ..offer(1, 2) }.sealed(1), LOCAL, 1));
    assert!(carried.has_credit(1, unasked));
    carried.take_back(1, TakenBack::Framing);
    let other = Offer { written: WINDOW, client: 8, ..offer(2, 3) }.sealed(1);
    assert!(carried.arrive(&other, LOCAL, 1));
    assert!(!carried.has_credit(1, || 0));
}

#[test]
fn messages_have_credit_until_they_are_acknowledged() {
    let mut carried = carried();
    assert!(carried.arrive(&offer(0, 1), LOCAL, 1));
    let send = |carried: &mut Carried, acked: u64| {
        let mut sent = 0;
        while carried.has_credit(1, || acked) {
            carried.redirect(1, 0);
            sent += 1;
        }
        sent
    };
    // Those of the daemon's own writes are not known.
    assert_eq!(send(&mut carried, 499), MESSAGES - UNCOUNTED);
    let first = carried.sent;
    // All that was written before the offer is acknowledged: what was counted since is all there is.
    assert_eq!(send(&mut carried, 500), UNCOUNTED);
    // Of what was counted since, the first stretch is acknowledged and the second is not.
    assert_eq!(send(&mut carried, first), MESSAGES - UNCOUNTED);
    let all = carried.sent;
    assert_eq!(send(&mut carried, all), MESSAGES);
}

#[test]
fn a_tail_keeps_the_last_half_at_least() {
    let mut tail = tail();
    let stream: Vec<u8> = (0..200_000_u32).map(|i| (i % 251) as u8).collect();
    let mut given = 0;
    for size in (1_usize..1500).cycle().step_by(37).take(180) {
        let Some(message) = stream.get(given..given + size) else { break };
        put(&mut tail, message, &Framing::length((1_000_000 - given) as u64));
        given += size;
        let [(_, old), (framing, new)] = tail.pieces();
        let both = [old, new].concat();
        assert!(both.len() >= given.min(HALF), "{} of {given}", both.len());
        // The newer half is the stream's end, and its framing stands where it begins.
        assert!(stream[..given].ends_with(new));
        if size <= HALF {
            let begins = (given - new.len()) as u64;
            if let Some(framing) = framing {
                assert_eq!(framing, Framing::length(1_000_000 - begins));
            }
        } else {
            assert_eq!((framing, new.len()), (None, HALF));
        }
    }
}

#[test]
fn an_error_event_is_known_by_its_first_words() {
    let table: [(&[u8; 16], bool); 6] = [
        (b"data: {\"error\": ", true),
        (b"data: {\"error\":{", true),
        (b"data:{\"error\":{\"", true),
        (b"data: {\"errors\":", false),
        (b"data: {\"id\":\"x\",", false),
        (b"ata: {\"error\": {", false),
    ];
    for (bytes, is) in table {
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!(begins_error(word(0), word(8)), is, "{bytes:?}");
    }
}

#[test]
fn a_cleared_tail_is_empty() {
    let mut tail = tail();
    put(&mut tail, b"abc", &Framing::chunked());
    assert_eq!(tail.pieces().map(|(_, bytes)| bytes), [&b""[..], b"abc"]);
    tail.clear();
    assert_eq!(tail.pieces().map(|(_, bytes)| bytes), [&b""[..], b""]);
}

proptest! {
    #[test]
    fn an_offer_is_whole_or_none(
        words in prop::array::uniform7(any::<u64>()), generation: u32, at in 0_usize..8, with: u64,
    ) {
        let [a, b, c, d, e, f, g] = words;
        let whole = Offer::from_words([a, b, c, d, e, f, g, 0]).sealed(generation);
        prop_assert_eq!(Offer::from_words(whole.words()), whole);
        prop_assert!(whole.is_sealed(generation));
        let mut torn = whole.words();
        torn[at] = with;
        prop_assume!(torn != whole.words());
        prop_assert!(!Offer::from_words(torn).is_sealed(generation));
    }

    /// Whatever the sizes and the daemon's pace, each byte is passed or redirected, in one piece each, and
    /// nothing is redirected while passed bytes wait.
    #[test]
    fn every_byte_takes_one_way_in_order(
        steps in prop::collection::vec((1_u32..5000, any::<bool>(), 0_u8..4), 1..200),
    ) {
        let mut carried = carried();
        let (mut total, mut read, mut turn, mut out) = (0_u64, 0_u64, 0, offer(0, 0));
        for (size, reads, fate) in steps {
            let waiting = carried.passed - read;
            let passed = carried.passed;
            total += u64::from(size);
            if carried.mode() == KERNEL || carried.arrive(&out, LOCAL, size) {
                prop_assert_eq!(waiting, 0);
                match fate {
                    0 => carried.take_back(size, TakenBack::Framing),
                    _ => carried.redirect(size, 1),
                }
            } else {
                prop_assert_eq!(carried.passed, passed + u64::from(size));
            }
            prop_assert_eq!(carried.passed + carried.redirected, total);
            if reads && carried.passed > read {
                read = carried.passed;
                turn += 1;
                out = offer(read, turn);
            }
        }
    }
}

fn tail() -> Tail {
    Tail {
        fill: [0; 2],
        current: 0,
        at: 0,
        skipped: 0,
        count: 0,
        framing: [Framing::none(); 2],
        bytes: [0; 3 * HALF],
    }
}

/// What the programs do.
fn put(tail: &mut Tail, message: &[u8], framing: &Framing) {
    tail.make_room(message.len() as u32, framing);
    let kept = &message[tail.skipped()..];
    assert_eq!(kept.len(), tail.count() as usize);
    let at = tail.at();
    tail.bytes[at..at + kept.len()].copy_from_slice(kept);
}
