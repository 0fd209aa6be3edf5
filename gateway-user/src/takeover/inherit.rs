//! Which of a former daemon's sockets a configuration has use for.

use std::net::{SocketAddr, TcpListener};

use super::{Description, Handed, Role};

/// Sockets of the daemon that ran before, until they are taken for what they are to do now.
#[derive(Debug, Default)]
pub struct Inherited(Vec<Handed>);

impl Inherited {
    /// All of these.
    pub fn new(sockets: Vec<Handed>) -> Self {
        Self(sockets)
    }

    /// Those at an address of listener `name`. By port 0, which is any, its former ones are meant.
    pub fn take_at(&mut self, name: &str, address: SocketAddr) -> Vec<TcpListener> {
        self.take(|described| is_at(described, name, address))
    }

    /// Those that only steering leads to, of listener `name`.
    pub fn take_dual(&mut self, name: &str) -> Vec<TcpListener> {
        self.take(|described| described.role == Role::Dual && described.listener == name)
    }

    /// That of the operators' side.
    pub fn take_admin(&mut self, address: SocketAddr) -> Option<TcpListener> {
        self.take(|described| described.role == Role::Admin && described.address == address).pop()
    }

    /// Whether any is bound to this port, whatever its address.
    pub fn has_port(&self, port: u16) -> bool {
        self.0.iter().any(|handed| handed.description.address.port() == port)
    }

    /// Where those that nobody took are bound, each address once. Connections that only steering
    /// leads to are not among them.
    pub fn left(&self) -> Vec<SocketAddr> {
        let mut left: Vec<SocketAddr> = (self.0.iter().map(|handed| &handed.description))
            .filter(|described| described.role != Role::Dual)
            .map(|described| described.address)
            .collect();
        left.sort_unstable();
        left.dedup();
        left
    }

    fn take(&mut self, wanted: impl Fn(&Description) -> bool) -> Vec<TcpListener> {
        self.0.extract_if(.., |handed| wanted(&handed.description)).map(|h| h.socket).collect()
    }
}

fn is_at(described: &Description, name: &str, wanted: SocketAddr) -> bool {
    let Description { role, listener, address } = described;
    match role {
        Role::Own if wanted.port() == 0 => listener == name && address.ip() == wanted.ip(),
        // The address counts: it may be another listener's now.
        Role::Own | Role::Virtual => *address == wanted,
        Role::Admin | Role::Dual => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_matched_by_address() {
        let table = [
            // role, its listener and address, the listener and address wanted
            (Role::Own, "http", "127.0.0.1:80", "http", "127.0.0.1:80", true),
            (Role::Own, "http", "127.0.0.1:80", "renamed", "127.0.0.1:80", true),
            (Role::Virtual, "http", "10.9.1.1:80", "http", "10.9.1.1:80", true),
            (Role::Own, "http", "127.0.0.1:80", "http", "127.0.0.1:81", false),
            (Role::Own, "http", "127.0.0.1:80", "http", "0.0.0.0:80", false),
            (Role::Own, "http", "[::1]:80", "http", "127.0.0.1:80", false),
            (Role::Own, "http", "127.0.0.1:3456", "http", "127.0.0.1:0", true),
            (Role::Own, "http", "127.0.0.1:3456", "other", "127.0.0.1:0", false),
            (Role::Own, "http", "127.0.0.1:3456", "http", "127.0.0.2:0", false),
            (Role::Virtual, "http", "127.0.0.1:3456", "http", "127.0.0.1:0", false),
            (Role::Admin, "", "127.0.0.1:80", "", "127.0.0.1:80", false),
            (Role::Dual, "http", "[::1]:80", "http", "[::1]:80", false),
        ];
        for (role, listener, address, name, wanted, want) in table {
            let described =
                Description { role, listener: listener.into(), address: address.parse().unwrap() };
            let found = is_at(&described, name, wanted.parse().unwrap());
            assert_eq!(found, want, "{described:?} for {name} {wanted}");
        }
    }

    #[test]
    fn each_is_taken_once_and_the_rest_is_known() {
        let handed = |role, listener: &str, ip: &str| {
            let socket = TcpListener::bind((ip, 0)).unwrap();
            let address = socket.local_addr().unwrap();
            let description = Description { role, listener: listener.into(), address };
            Handed { description, socket }
        };
        let all = vec![
            handed(Role::Own, "http", "127.0.0.1"),
            handed(Role::Own, "http", "127.0.0.1"),
            handed(Role::Own, "more", "127.0.0.1"),
            handed(Role::Dual, "http", "127.0.0.1"),
            handed(Role::Admin, "", "127.0.0.1"),
        ];
        let at: Vec<SocketAddr> = all.iter().map(|handed| handed.description.address).collect();
        let mut inherited = Inherited::new(all);
        assert!(inherited.has_port(at[2].port()));
        assert_eq!(inherited.take_at("http", "127.0.0.1:0".parse().unwrap()).len(), 2);
        assert_eq!(inherited.take_at("http", at[0]).len(), 0);
        assert_eq!(inherited.left(), {
            let mut left = vec![at[2], at[4]];
            left.sort();
            left
        });
        assert_eq!(inherited.take_admin(at[4]).unwrap().local_addr().unwrap(), at[4]);
        assert_eq!(inherited.take_dual("more").len(), 0);
        assert_eq!(inherited.take_dual("http").len(), 1);
        assert_eq!(inherited.left(), [at[2]]);
    }
}
