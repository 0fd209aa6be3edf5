//! What is told, lost and forgotten.

use proptest::prelude::*;

use super::*;
use crate::schedule::speed::{Line, Speed};

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn load(in_flight: u32) -> Load {
    Load { in_flight, pending: 1, prefill_tokens: 500, busy_us: 60_000, sent: 1, tokens: 900 }
}

fn known(count: f32) -> Known {
    let speed = Speed { first: Line::new(0.02, 1e-4), token: Line::new(0.01, 1e-4) };
    Known { speed, counts: (count, count) }
}

/// A round of the reporter, as messages.
fn round(reporter: &mut Reporter, pods: &[(u64, Load)]) -> Vec<Message> {
    let mut messages = Vec::new();
    let pods = pods.iter().map(|&(pod, load)| (pod, load, known(0.0)));
    reporter.report(pods, |datagram| messages.push(decode(datagram).unwrap()));
    messages
}

fn hear(peers: &mut Peers, messages: &[Message], at: Duration) {
    assert!(messages.iter().all(|message| peers.receive(message, at)));
}

#[test]
fn what_peers_have_is_added_up() {
    let (mut one, mut two) = (Reporter::new(7, 1), Reporter::new(7, 2));
    let mut peers = Peers::new(7, 3, ms(20));
    hear(&mut peers, &round(&mut one, &[(40, load(2)), (41, load(1))]), ms(100));
    hear(&mut peers, &round(&mut two, &[(40, load(5))]), ms(110));
    assert_eq!((peers.len(), peers.is_empty()), (2, false));
    let others = peers.others(40, ms(110));
    assert_eq!((others.in_flight, others.pending, others.sent), (7, 2, 2));
    assert_eq!((others.prefill_tokens, others.tokens), (1000, 1800));
    // What was to be computed is, in time.
    assert_eq!(others.busy, ms(60));
    assert_eq!(peers.others(40, ms(130)).busy, ms(40));
    assert_eq!(peers.others(40, ms(500)).busy, ms(0));
    assert_eq!(peers.others(99, ms(110)), Others::default());
    // A later word takes the place of an earlier one.
    hear(&mut peers, &round(&mut one, &[(40, Load::default())]), ms(120));
    assert_eq!(peers.others(40, ms(120)).in_flight, 5);
    hear(&mut peers, &round(&mut two, &[(40, Load::default())]), ms(120));
    assert_eq!(peers.others(40, ms(120)), Others::default());
}

#[test]
fn that_nothing_is_left_is_heard_though_it_was_lost_once() {
    let mut one = Reporter::new(7, 1);
    let mut peers = Peers::new(7, 3, ms(20));
    hear(&mut peers, &round(&mut one, &[(40, load(2))]), ms(0));
    let _lost = round(&mut one, &[(40, Load::default())]);
    for number in 1..=u64::from(REFRESH) {
        hear(&mut peers, &round(&mut one, &[(40, Load::default())]), ms(20 * number));
        peers.expire(ms(20 * number));
    }
    assert_eq!(peers.others(40, ms(20 * u64::from(REFRESH))), Others::default());
    // And after a while no more is said of it.
    let told = (0..100).map(|_| round(&mut one, &[(40, Load::default())])).skip(50);
    assert!(told.flatten().all(|message| message.loads.is_empty()));
}

#[test]
fn who_falls_silent_counts_as_nothing() {
    let mut peers = Peers::new(7, 3, ms(100));
    hear(&mut peers, &round(&mut Reporter::new(7, 1), &[(40, load(2))]), ms(0));
    peers.expire(ms(500));
    assert_eq!(peers.others(40, ms(500)).in_flight, 2);
    peers.expire(ms(501));
    assert_eq!(peers.others(40, ms(501)), Others::default());
    assert!(peers.is_empty());
    assert_eq!(peers.known(40, ms(501)), None);
    // At once back with its next word, even after a restart with a lower sequence.
    hear(&mut peers, &round(&mut Reporter::new(7, 1), &[(40, load(2))]), ms(600));
    assert_eq!(peers.others(40, ms(600)).in_flight, 2);
}

#[test]
fn old_foreign_and_own_messages_are_left_out() {
    let mut reporter = Reporter::new(7, 1);
    let first = round(&mut reporter, &[(40, load(2))]);
    let second = round(&mut reporter, &[(40, load(3))]);
    let mut peers = Peers::new(7, 3, ms(20));
    hear(&mut peers, &second, ms(10));
    assert!(!peers.receive(&first[0], ms(11)));
    assert_eq!(peers.others(40, ms(11)).in_flight, 3);
    for (pool, me) in [(8, 3), (7, 1)] {
        assert!(!Peers::new(pool, me, ms(20)).receive(&first[0], ms(0)), "{pool} {me}");
    }
    // Another one too many is not heard.
    for from in 100..100 + MAX_PEERS as u64 - 1 {
        hear(&mut peers, &round(&mut Reporter::new(7, from), &[]), ms(20));
    }
    assert!(!peers.receive(&round(&mut Reporter::new(7, 99), &[])[0], ms(20)));
}

#[test]
fn news_is_told_at_once_and_all_now_and_then() {
    let mut reporter = Reporter::new(7, 1);
    let pods = [(40, load(2)), (41, Load::default())];
    assert_eq!(round(&mut reporter, &pods)[0].loads, [(40, load(2))]);
    let told: Vec<usize> = (1..=REFRESH)
        .map(|_| round(&mut reporter, &pods).iter().map(|message| message.loads.len()).sum())
        .collect();
    assert_eq!(told.iter().sum::<usize>(), 1, "{told:?}");
    assert_eq!(told.last(), Some(&1));
    let changed = [(40, load(1)), (41, load(1))];
    assert_eq!(round(&mut reporter, &changed)[0].loads, changed);
    // That there is nothing any more is news too, once.
    let none = [(40, Load::default()), (41, Load::default())];
    assert_eq!(round(&mut reporter, &none)[0].loads, none);
    assert!(round(&mut reporter, &none)[0].loads.is_empty());
}

#[test]
fn a_round_takes_as_many_datagrams_as_it_needs() {
    let mut reporter = Reporter::new(7, 1);
    let pods: Vec<(u64, Load)> = (0..100).map(|pod| (pod, load(1))).collect();
    let blocks: Vec<u64> = (0..20_000).collect();
    (0..100).for_each(|pod| reporter.sent(pod, &blocks, 0, 0));
    let mut sizes = Vec::new();
    let mut found = (Vec::new(), 0);
    let with_speeds = pods.iter().map(|&(pod, load)| (pod, load, known(9.0)));
    reporter.report(with_speeds, |datagram| {
        sizes.push(datagram.len());
        let message = decode(datagram).unwrap();
        found.0.extend(message.loads);
        found.1 += message.chains.len();
        assert!(message.chains.iter().all(|chain| chain.marks.len() == MAX_MARKS && chain.is_cold));
    });
    assert!(sizes.iter().all(|size| *size <= MAX_DATAGRAM), "{sizes:?}");
    assert_eq!((found.0, found.1), (pods, MAX_CHAINS));
}

#[test]
fn known_prompts_are_told_seldom() {
    let mut reporter = Reporter::new(7, 1);
    let blocks: Vec<u64> = (0..40).collect();
    let chains = |reporter: &mut Reporter| round(reporter, &[])[0].chains.clone();
    reporter.sent(40, &blocks, 0, 0);
    let told = chains(&mut reporter);
    assert_eq!(told, [Chain { pod: 40, is_cold: true, marks: marks(&blocks) }]);
    // Another end of it, behind the last mark, is nothing new.
    let count = (0..REPEAT * 4)
        .map(|_| {
            reporter.sent(40, &blocks, 35, 35);
            chains(&mut reporter).len()
        })
        .sum::<usize>();
    assert_eq!(count, 4);
    reporter.sent(40, &blocks, 31, 35);
    assert!(!chains(&mut reporter)[0].is_cold);
    reporter.sent(40, &blocks[..3], 0, 0);
    assert!(chains(&mut reporter).is_empty(), "too short for a mark");
}

#[test]
fn marks_say_up_to_where_prompts_are_alike() {
    let blocks: Vec<u64> = (100..400).collect();
    assert_eq!(marks(&blocks[..3]), [0_u64; 0]);
    let whole = marks(&blocks);
    assert_eq!(depth(whole.len() as u32), 256);
    for len in [4, 5, 33, 63, 64, 299] {
        let found = depth(marks(&blocks[..len]).len() as u32) as usize;
        assert!(found <= len && found * 3 >= len * 2, "{len}: {found}");
    }
    assert_eq!((depth(0), depth(u32::MAX)), (0, 12_288));
    assert!(whole.iter().all(|mark| !blocks.contains(mark)));
}

#[test]
fn speeds_are_joined_and_fade() {
    let mut peers = Peers::new(7, 3, ms(20));
    let slower = Speed { first: Line::new(0.08, 4e-4), token: Line::new(0.01, 1e-4) };
    for (from, told) in [(1, known(8.0)), (2, Known { speed: slower, counts: (8.0, 0.0) })] {
        let mut reporter = Reporter::new(7, from);
        for _ in 0..SPEEDS {
            reporter.report([(40, Load::default(), told)], |datagram| {
                peers.receive(&decode(datagram).unwrap(), ms(0));
            });
        }
    }
    let both = peers.known(40, ms(0)).unwrap();
    assert_eq!(both.counts, (16.0, 8.0));
    assert!((both.speed.first.at_zero() / 0.04 - 1.0).abs() < 1e-3, "{both:?}");
    assert!((both.speed.token.at_zero() / 0.01 - 1.0).abs() < 1e-3, "{both:?}");
    let later = peers.known(40, Duration::from_secs(60)).unwrap();
    assert!((later.counts.0 - 8.0).abs() < 1e-3);
}

fn any_message() -> impl Strategy<Value = Message> {
    let load = any::<[u32; 6]>().prop_map(
        |[in_flight, pending, prefill_tokens, busy_us, sent, tokens]| Load {
            in_flight,
            pending,
            prefill_tokens,
            busy_us,
            sent,
            tokens,
        },
    );
    let chain = (any::<u64>(), any::<bool>(), prop::collection::vec(any::<u64>(), 0..=MAX_MARKS))
        .prop_map(|(pod, is_cold, marks)| Chain { pod, is_cold, marks });
    let loads = prop::collection::vec((any::<u64>(), load), 0..12);
    let speeds = prop::collection::vec((any::<u64>(), Just(known(3.0))), 0..4);
    let head = (any::<u64>(), any::<u64>(), any::<u32>());
    (head, loads, speeds, prop::collection::vec(chain, 0..3)).prop_map(
        |((pool, from, sequence), loads, speeds, chains)| Message {
            pool,
            from,
            sequence,
            loads,
            speeds,
            chains,
        },
    )
}

proptest! {
    #[test]
    fn what_fits_comes_back(message in any_message()) {
        let bytes = message.encode();
        prop_assert!(bytes.len() <= MAX_DATAGRAM);
        let read = decode(&bytes).unwrap();
        prop_assert_eq!(&read.loads, &message.loads);
        prop_assert_eq!(&read.speeds, &message.speeds);
        prop_assert!(message.chains.starts_with(&read.chains));
        // Neither more nor less than the whole.
        prop_assert_eq!(decode(&bytes[..bytes.len() - 1]), None);
        prop_assert_eq!(decode(&[&bytes[..], &[0]].concat()), None);
    }

    #[test]
    fn nothing_that_is_sent_does_harm(
        messages in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..300), any_message(), any::<usize>()), 0..6),
    ) {
        let mut peers = Peers::new(7, 3, ms(20));
        for (place, (noise, message, at)) in messages.iter().enumerate() {
            decode(noise);
            let mut bytes = message.encode();
            let at = at % bytes.len();
            bytes[at] ^= 0x41;
            if let Some(mut message) = decode(&bytes) {
                message.pool = 7;
                peers.receive(&message, ms(place as u64));
                for (pod, _) in &message.loads {
                    peers.others(*pod, ms(place as u64));
                    peers.known(*pod, ms(place as u64));
                }
            }
        }
        peers.expire(Duration::from_secs(9));
        prop_assert!(peers.is_empty());
        prop_assert!(peers.sums.is_empty() || peers.sums.values().all(|sum| sum.in_flight == 0));
    }
}
