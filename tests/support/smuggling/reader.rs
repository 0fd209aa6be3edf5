//! The readers that the gateway is compared with: hyper's server in this process, nginx and HAProxy as programs
//! with plain configurations and short timeouts, so that each connection ends by itself.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};

use super::strict::{StrictPod, shown};
use crate::gateway::{PATIENCE, free_port};

/// What reads.
#[derive(Debug)]
pub struct Reader {
    /// Name and version.
    pub name: String,
    /// Where it listens.
    pub address: SocketAddr,
    requests: Requests,
    process: Option<Process>,
}

#[derive(Debug)]
enum Requests {
    Own(Arc<Mutex<Vec<String>>>),
    Pod(StrictPod),
}

/// Killed when dropped, and its folder removed.
#[derive(Debug)]
struct Process {
    child: Child,
    folder: PathBuf,
}

impl Reader {
    /// All three.
    ///
    /// # Errors
    /// nginx or HAProxy is not installed, or does not start.
    pub fn start_all() -> anyhow::Result<[Self; 3]> {
        Ok([Self::hyper(), Self::nginx()?, Self::haproxy()?])
    }

    /// The requests so far, in the form of [`StrictPod`].
    pub fn requests(&self) -> Vec<String> {
        match &self.requests {
            Requests::Own(own) => own.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            Requests::Pod(pod) => pod.requests(),
        }
    }

    /// What its pod would not take.
    pub fn faults(&self) -> Vec<String> {
        match &self.requests {
            Requests::Own(_) => Vec::new(),
            Requests::Pod(pod) => pod.faults(),
        }
    }

    /// hyper's server.
    ///
    /// # Panics
    /// This process may not listen.
    pub fn hyper() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        listener.set_nonblocking(true).expect("a socket may be polled");
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let kept = Arc::clone(&requests);
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("a runtime");
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
                while let Ok((stream, _)) = listener.accept().await {
                    let kept = Arc::clone(&kept);
                    tokio::spawn(serve(stream, kept));
                }
            });
        });
        let name = format!("hyper {HYPER}");
        Self { name, address, requests: Requests::Own(requests), process: None }
    }

    fn nginx() -> anyhow::Result<Self> {
        let pod = StrictPod::start();
        let (address, to) = (loopback(free_port()), pod.address);
        let version = said("nginx", "-v")?;
        let version = version.rsplit('/').next().unwrap_or_default().trim().to_owned();
        let program = program("nginx")?;
        let process = Process::start(address, |folder| {
            let shown = folder.display();
            let mut text = format!(
                "daemon off;\nmaster_process off;\npid \"{shown}/pid\";\nerror_log \"{shown}/log\" crit;\n\
                 events {{ worker_connections 4096; }}\nhttp {{\n  access_log off;\n  keepalive_timeout 1s;\n\
                 \x20 client_header_timeout 1s;\n  client_body_timeout 1s;\n  client_max_body_size 16m;\n\
                 \x20 lingering_timeout 200ms;\n  lingering_time 1s;\n"
            );
            for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
                text.push_str(&format!("  {kind}_temp_path \"{shown}/{kind}\";\n"));
            }
            text.push_str(&format!(
                "  server {{\n    listen {address} backlog=4096;\n    location / {{\n      proxy_pass http://{to};\n\
                 \x20     proxy_http_version 1.1;\n      proxy_set_header Connection \"\";\n    }}\n  }}\n}}\n"
            ));
            std::fs::write(folder.join("conf"), text)?;
            let mut command = Command::new(program);
            command.arg("-p").arg(folder).arg("-c").arg(folder.join("conf"));
            Ok(command)
        })?;
        let name = format!("nginx {version}");
        Ok(Self { name, address, requests: Requests::Pod(pod), process: Some(process) })
    }

    fn haproxy() -> anyhow::Result<Self> {
        let pod = StrictPod::start();
        let (address, to) = (loopback(free_port()), pod.address);
        let version = said("haproxy", "-v")?;
        let version = version.split_whitespace().nth(2).unwrap_or_default().to_owned();
        let program = program("haproxy")?;
        let process = Process::start(address, |folder| {
            let text = format!(
                "global\n  nbthread 1\n  maxconn 4096\ndefaults\n  mode http\n  timeout connect 5s\n\
                 \x20 timeout client 1s\n  timeout server 30s\n  timeout http-request 1s\n\
                 \x20 timeout http-keep-alive 1s\nfrontend clients\n  bind {address}\n  default_backend pod\n\
                 backend pod\n  server pod {to}\n"
            );
            std::fs::write(folder.join("conf"), text)?;
            let mut command = Command::new(program);
            command.arg("-db").arg("-f").arg(folder.join("conf"));
            Ok(command)
        })?;
        let name = format!("HAProxy {version}");
        Ok(Self { name, address, requests: Requests::Pod(pod), process: Some(process) })
    }
}

impl Process {
    fn start(
        address: SocketAddr,
        command: impl FnOnce(&Path) -> anyhow::Result<Command>,
    ) -> anyhow::Result<Self> {
        let folder = std::env::temp_dir().join(format!("sluice-reader-{}", address.port()));
        std::fs::create_dir_all(&folder)?;
        let mut command = command(&folder)?;
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let mut process = Self { child, folder };
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(address).is_err() {
            let ended = process.child.try_wait()?;
            ensure!(ended.is_none() && Instant::now() < deadline, "{command:?} does not listen");
            thread::sleep(Duration::from_millis(20));
        }
        Ok(process)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        drop(self.process.take());
    }
}

/// One connection of hyper's, at most so long that a client which says no more is let go.
async fn serve(stream: tokio::net::TcpStream, requests: Arc<Mutex<Vec<String>>>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let requests = Arc::clone(&requests);
        async move {
            let (head, body) = request.into_parts();
            let target = head.uri.to_string();
            // A body that breaks off is no request.
            let body = body.collect().await?.to_bytes();
            let request = shown(head.method.as_str(), &target, &body);
            requests.lock().unwrap_or_else(PoisonError::into_inner).push(request);
            let answer = Response::new(Full::new(Bytes::from_static(b"{}")));
            Ok::<_, hyper::Error>(answer)
        }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(Duration::from_secs(1));
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    // Its end, whatever it is, ends the connection.
    let _ = tokio::time::timeout(Duration::from_secs(2), connection).await;
}

fn loopback(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// What a program says with one argument.
fn said(name: &str, argument: &str) -> anyhow::Result<String> {
    let output = Command::new(program(name)?).arg(argument).output()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// Where a program is: on the path, or among the system's own.
fn program(name: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
        .with_context(|| format!("{name} is not installed"))
}

/// The version that Cargo.lock has: the crate does not tell it.
const HYPER: &str = "1.12";
