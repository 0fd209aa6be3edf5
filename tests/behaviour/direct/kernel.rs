//! The kernel's part by itself, with plain sockets for servers, in a namespace of its own.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use gateway_user::config::KernelLog;
use gateway_user::kernel::{Direct, PodConnections, ServerSocket, Steering, Worth};
use sluice_tests::netns;
use sluice_tests::steering::{
    BLOCKS, accept, close, counters, dial, drain, group, nothing_waits, one, start,
};

#[test]
fn connections_go_to_the_best_servers() {
    netns::run(BLOCKS, || {
        let servers = group_each(3);
        let own = group(1, "127.0.0.1:0");
        let mut steering = started();
        let pool = pool_of(&mut steering, &servers, &own);
        steering.direct().publish(pool, 100, &[fit(900), fit(900), fit(500)]).unwrap();
        let clients: Vec<_> = (0..60).map(|_| dial(DIALLED).unwrap()).collect();
        let got = drain(&servers, 60);
        assert!(got[0] > 10 && got[1] > 10 && got[2] == 0, "{got:?}");
        let counted = steering.direct().counters(pool).unwrap();
        let given: Vec<_> = counted.pods.iter().map(|pod| pod.given as usize).collect();
        assert_eq!(given, got);
        assert_eq!((counted.fallbacks, counted.retried, counted.stale), (0, 0, 0));
        assert_eq!(counters(&steering), (60, 0, 0));

        // A burst spreads evenly, not by chance.
        steering.direct().publish(pool, 100, &[fit(900), fit(500), fit(900)]).unwrap();
        let more: Vec<_> = (0..200).map(|_| dial(DIALLED).unwrap()).collect();
        let got = drain(&servers, 200);
        assert!(got[0].abs_diff(100) < 10 && got[1] == 0, "{got:?}");
        drop((clients, more));
    });
}

#[test]
fn nothing_stands_between_client_and_server() {
    netns::run(BLOCKS, || {
        let servers = group_each(1);
        let own = group(1, "127.0.0.1:0");
        let mut steering = started();
        let pool = pool_of(&mut steering, &servers, &own);
        steering.direct().publish(pool, 0, &[fit(1000)]).unwrap();
        let client = dial(DIALLED).unwrap();
        let (server, peer) = accept(&servers[0]);
        assert_eq!(peer, client.local_addr().unwrap());
        assert_eq!(server.local_addr().unwrap(), client.peer_addr().unwrap());
    });
}

#[test]
fn the_gateway_gets_what_no_server_can_take() {
    netns::run(BLOCKS, || {
        let servers = group_each(2);
        let own = group(1, "127.0.0.1:0");
        let mut steering = started();
        let pool = pool_of(&mut steering, &servers, &own);
        let falls = |steering: &mut Steering, want: u64| {
            let _client = dial(DIALLED).unwrap();
            accept(&own[0]);
            assert!(servers.iter().all(nothing_waits));
            assert_eq!(steering.direct().counters(pool).unwrap().fallbacks, want);
        };
        // Nothing is published.
        falls(&mut steering, 1);
        let full = Worth { fit: false, ..fit(1000) };
        let gone = Worth { ready: false, ..fit(1000) };
        steering.direct().publish(pool, 1000, &[full, gone]).unwrap();
        falls(&mut steering, 2);
        steering.direct().publish(pool, 1000, &[full, fit(0)]).unwrap();
        let _client = dial(DIALLED).unwrap();
        accept(&servers[1]);

        // A socket that is not there is passed over, and the other server gets what it had.
        steering.direct().publish(pool, 1000, &[fit(1000), fit(1000)]).unwrap();
        let mut servers = servers;
        close(vec![servers.remove(1)]);
        let clients: Vec<_> = (0..20).map(|_| dial(DIALLED).unwrap()).collect();
        servers.extend(own.iter().map(|own| own.try_clone().unwrap()));
        let got = drain(&servers, 20);
        // One in ten misses the one that is there each time.
        assert!(got[0] >= 12, "{got:?}");
        servers.truncate(1);
        assert!(steering.direct().counters(pool).unwrap().retried > 0);
        close(servers);
        let _client = dial(DIALLED).unwrap();
        accept(&own[0]);
        drop(clients);
    });
}

#[test]
fn a_gateway_that_hangs_does_not_stop_the_servers() {
    netns::run(BLOCKS, || {
        let servers = group_each(3);
        let own = group(1, "127.0.0.1:0");
        let mut steering = started();
        let pool = pool_of(&mut steering, &servers, &own);
        let full = Worth { fit: false, ..fit(100) };
        let gone = Worth { ready: false, ..fit(1000) };
        steering.direct().publish(pool, 100, &[fit(900), full, gone]).unwrap();
        // Nobody publishes for longer than scores are good for.
        std::thread::sleep(std::time::Duration::from_millis(3100));
        let clients: Vec<_> = (0..40).map(|_| dial(DIALLED).unwrap()).collect();
        let got = drain(&servers, 40);
        assert!(got[0] > 5 && got[1] > 5 && got[2] == 0, "{got:?}");
        assert_eq!(steering.direct().counters(pool).unwrap().stale, 40);
        drop(clients);
    });
}

#[test]
fn ipv6_and_both_families() {
    netns::run(BLOCKS, || {
        let both = group(1, "[::]:0");
        let v4 = group(1, "127.0.0.1:0");
        let own = group(1, "[::]:0");
        let mut steering = started();
        let pods = [port_of(&both, "127.0.0.1"), port_of(&v4, "127.0.0.1")];
        let pool = steering.direct().add_pool(&pods).unwrap();
        for (place, server) in [&both[0], &v4[0]].into_iter().enumerate() {
            steering.direct().put(pool, place, server).unwrap();
        }
        steering.set_direct_listener(0, pool, &[one("[fd09::1]:80"), one(DIALLED)], &own).unwrap();
        steering.direct().publish(pool, 1000, &[fit(1000), fit(1000)]).unwrap();
        // A server that takes no IPv6 is passed over.
        let clients: Vec<_> = (0..20).map(|_| dial("[fd09::1]:80").unwrap()).collect();
        let got = drain(&[both[0].try_clone().unwrap(), own[0].try_clone().unwrap()], 20);
        assert!(got[0] >= 12 && nothing_waits(&v4[0]), "{got:?}");
        steering.direct().publish(pool, 1000, &[fit(1000), fit(1000)]).unwrap();
        let more: Vec<_> = (0..20).map(|_| dial(DIALLED).unwrap()).collect();
        let got = [&both, &v4].map(|server| {
            let mut count = 0;
            while server[0].accept().is_ok() {
                count += 1;
            }
            count
        });
        assert!(got[0] > 2 && got[1] > 2 && got[0] + got[1] == 20, "{got:?}");
        drop((clients, more));
    });
}

#[test]
fn servers_are_enrolled_as_they_begin_to_listen_and_counted() {
    netns::run(BLOCKS, || {
        let own = group(1, "127.0.0.1:0");
        let mut steering = started();
        steering.watch_servers().unwrap();
        // Ports that were free a moment ago.
        let pods = [addresses(&group_each(1))[0], port_of(&group(1, "0.0.0.0:0"), "127.0.0.1")];
        let pool = steering.direct().add_pool(&pods).unwrap();
        steering.set_direct_listener(0, pool, &[one(DIALLED)], &own).unwrap();
        let publish = |steering: &mut Steering| {
            steering.direct().publish(pool, 1000, &[fit(1000), fit(1000)]).unwrap();
        };
        publish(&mut steering);
        let _client = dial(DIALLED).unwrap();
        accept(&own[0]);

        // One at its very address, one at every address.
        let first = group(1, &pods[0].to_string());
        let second = group(1, &format!("0.0.0.0:{}", pods[1].port()));
        let all: Vec<TcpListener> = first.into_iter().chain(second).collect();
        let mut clients: Vec<_> = (0..20).map(|_| dial(DIALLED).unwrap()).collect();
        let mut accepted = take(&all, 20);
        let got = lengths(&accepted);
        assert!(got[0] > 2 && got[1] > 2, "{got:?}");
        let open = |direct: &mut Direct| -> Vec<u64> {
            direct.counters(pool).unwrap().pods.iter().map(|pod| pod.open).collect()
        };
        let want: Vec<_> = got.iter().map(|count| *count as u64).collect();
        assert_eq!(open(steering.direct()), want);
        // Who dials a server itself is not counted, and the server is not kept from it.
        let stray = dial(&pods[0].to_string()).unwrap();
        accept(&all[0]);
        assert_eq!(open(steering.direct()), want);
        drop(stray);
        // Nor are a server's own connections elsewhere.
        let elsewhere = group(1, "127.0.0.1:0");
        let _out = dial(&elsewhere[0].local_addr().unwrap().to_string()).unwrap();
        assert_eq!(open(steering.direct()), want);

        assert_eq!(steering.direct().look().unwrap(), [[ServerSocket::Held, ServerSocket::Held]]);
        clients.truncate(5);
        wait(|| open(steering.direct()).iter().sum::<u64>() == 5);
        // A server that closes first ends the connection as well.
        accepted.clear();
        wait(|| open(steering.direct()) == [0, 0]);
        drop(clients);
        assert_eq!(open(steering.direct()), [0, 0]);

        // A server that starts anew is there at once.
        close(all);
        assert_eq!(
            steering.direct().look().unwrap(),
            [[ServerSocket::NotListening, ServerSocket::NotListening]]
        );
        let _client = dial(DIALLED).unwrap();
        accept(&own[0]);
        let again = group(1, &pods[0].to_string());
        steering.direct().publish(pool, 0, &[fit(1000), fit(0)]).unwrap();
        let _client = dial(DIALLED).unwrap();
        accept(&again[0]);
    });
}

#[test]
fn servers_that_were_there_first_are_fetched() {
    netns::run(BLOCKS, || {
        let servers = group_each(2);
        // Several processes of one server: one address, each with a socket of its own.
        let crowd = group(3, "127.0.0.1:0");
        let own = group(1, "127.0.0.1:0");
        let mut steering = started();
        steering.watch_servers().unwrap();
        let mut pods = addresses(&servers);
        pods.push(crowd[0].local_addr().unwrap());
        let pool = steering.direct().add_pool(&pods).unwrap();
        steering.set_direct_listener(0, pool, &[one(DIALLED)], &own).unwrap();
        let held = ServerSocket::Held;
        assert_eq!(steering.direct().look().unwrap(), [[held.clone(), held.clone(), held]]);

        let only_crowd =
            [fit(0), fit(0), fit(1000)].map(|worth| Worth { ready: worth.score > 500, ..worth });
        steering.direct().publish(pool, 1000, &only_crowd).unwrap();
        let clients: Vec<_> = (0..60).map(|_| dial(DIALLED).unwrap()).collect();
        let accepted = take(&crowd, 60);
        let got = lengths(&accepted);
        assert!(got.iter().all(|count| *count > 5), "{got:?}");
        let counted = steering.direct().counters(pool).unwrap();
        assert_eq!(counted.pods[2], PodConnections { given: 60, open: 60 });

        drop(accepted);
        // The one in the map closes; another of the crowd is put in its place.
        let mut crowd = crowd;
        for _ in 0..2 {
            close(vec![crowd.remove(0)]);
            steering.direct().look().unwrap();
            let _client = dial(DIALLED).unwrap();
            let deadline = std::time::Instant::now() + sluice_tests::steering::PATIENCE;
            while crowd.iter().all(|socket| socket.accept().is_err()) {
                assert!(std::time::Instant::now() < deadline, "nobody of the crowd got it");
            }
        }
        drop(clients);
    });
}

#[test]
fn strangers_are_left_alone() {
    netns::run(BLOCKS, || {
        let own = group(1, "127.0.0.1:0");
        let mut steering = started();
        steering.watch_servers().unwrap();
        let free = addresses(&group_each(1))[0];
        let pool = steering.direct().add_pool(&[free]).unwrap();
        steering.set_direct_listener(0, pool, &[one(DIALLED)], &own).unwrap();
        steering.direct().publish(pool, 0, &[fit(1000)]).unwrap();

        // The same port at another address, another port at the same, the same of IPv6, and the
        // very same address in another namespace.
        let port = free.port();
        let mut strangers = group(1, &format!("127.0.0.2:{port}"));
        strangers.extend(group(1, "127.0.0.1:0"));
        strangers.extend(group(1, &format!("[::1]:{port}")));
        strangers.push(elsewhere(free));
        let _clients: Vec<_> = (0..3).map(|_| dial(DIALLED).unwrap()).collect();
        assert_eq!(drain(&own, 3), [3]);
        assert_eq!(steering.direct().look().unwrap(), [[ServerSocket::NotListening]]);
        let _client = dial(DIALLED).unwrap();
        accept(&own[0]);
        assert!(strangers.iter().all(nothing_waits));
        assert_eq!(steering.direct().counters(pool).unwrap().fallbacks, 4);
    });
}

#[test]
fn pools_are_apart_and_bounded() {
    netns::run(BLOCKS, || {
        let servers = group_each(2);
        let own = group(1, "127.0.0.1:0");
        let mut steering = started();
        for (place, server) in servers.iter().enumerate() {
            let pool = steering.direct().add_pool(&[server.local_addr().unwrap()]).unwrap();
            assert_eq!(pool as usize, place);
            steering.direct().put(pool, 0, server).unwrap();
            steering.direct().publish(pool, 0, &[fit(0)]).unwrap();
            let dialled = one(&format!("10.9.0.{place}:80"));
            steering.set_direct_listener(pool, pool, &[dialled], &own).unwrap();
        }
        let clients: Vec<_> = (0..5).map(|_| dial("10.9.0.1:80").unwrap()).collect();
        assert_eq!(drain(&servers, 5), [0, 5]);
        // The listener goes back to its own sockets.
        steering.set_listener(1, &[one("10.9.0.1:80")], &own).unwrap();
        let _client = dial("10.9.0.1:80").unwrap();
        accept(&own[0]);

        let direct = steering.direct();
        let pod: SocketAddr = (Ipv4Addr::LOCALHOST, 1).into();
        assert!(direct.add_pool(&[]).is_err());
        assert!(direct.add_pool(&[pod; 65]).is_err());
        assert!(direct.publish(2, 0, &[]).is_err());
        assert!(direct.put(0, 1, &servers[0]).is_err());
        assert!(direct.counters(7).is_err());
        for pool in 2..32 {
            assert_eq!(direct.add_pool(&[pod; 64]).unwrap(), pool);
        }
        assert!(direct.add_pool(&[pod]).is_err());
        drop(clients);
    });
}

/// What the tests' clients dial.
const DIALLED: &str = "10.9.0.1:80";

/// Steering that knows of pools of whole connections.
fn started() -> Steering {
    let mut steering = start(KernelLog::Off);
    steering.start_direct().unwrap();
    steering
}

fn fit(score: u32) -> Worth {
    Worth { score, ready: true, fit: true }
}

/// Servers, each with a port of its own.
fn group_each(count: usize) -> Vec<TcpListener> {
    (0..count).flat_map(|_| group(1, "127.0.0.1:0")).collect()
}

fn addresses(servers: &[TcpListener]) -> Vec<SocketAddr> {
    servers.iter().map(|server| server.local_addr().unwrap()).collect()
}

fn port_of(servers: &[TcpListener], ip: &str) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), servers[0].local_addr().unwrap().port())
}

/// A pool of these servers, their sockets given; what is dialled leads there.
fn pool_of(steering: &mut Steering, servers: &[TcpListener], own: &[TcpListener]) -> u32 {
    let pool = steering.direct().add_pool(&addresses(servers)).unwrap();
    for (place, server) in servers.iter().enumerate() {
        steering.direct().put(pool, place, server).unwrap();
    }
    steering.set_direct_listener(0, pool, &[one(DIALLED)], own).unwrap();
    pool
}

/// A socket that listens there in another network namespace.
fn elsewhere(at: SocketAddr) -> TcpListener {
    let (give, take) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        netns::run(&[], move || give.send(group(1, &at.to_string()).remove(0)).unwrap());
    });
    take.recv().unwrap()
}

/// Accepts `total` connections and keeps them, by server.
fn take(servers: &[TcpListener], total: usize) -> Vec<Vec<TcpStream>> {
    let mut taken: Vec<Vec<TcpStream>> = servers.iter().map(|_| Vec::new()).collect();
    wait(|| {
        for (server, taken) in servers.iter().zip(&mut taken) {
            taken.extend(std::iter::from_fn(|| server.accept().ok()).map(|(stream, _)| stream));
        }
        lengths(&taken).iter().sum::<usize>() == total
    });
    taken
}

fn lengths(taken: &[Vec<TcpStream>]) -> Vec<usize> {
    taken.iter().map(Vec::len).collect()
}

fn wait(mut is: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + sluice_tests::steering::PATIENCE;
    while !is() {
        assert!(std::time::Instant::now() < deadline, "waited in vain");
        std::thread::yield_now();
    }
}
