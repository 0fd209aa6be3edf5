//! Starts the real `sluice` binary for a test and ends it with the test.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::engine::Server;

/// A running gateway. It is killed when dropped.
#[derive(Debug)]
pub struct Gateway {
    /// Where clients connect.
    pub address: SocketAddr,
    /// Where operators connect.
    pub admin: SocketAddr,
    child: Child,
    log: Arc<Mutex<String>>,
    reading: Option<thread::JoinHandle<()>>,
    config: PathBuf,
    ports: (u16, u16),
}

/// What a test's gateway is to serve.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The pools: name of the base model, and its pods.
    pub pools: Vec<(String, Vec<SocketAddr>)>,
    /// Further lines under `spec`, indented by two blanks.
    pub spec: String,
    /// Further lines under each scheduler, indented by four blanks.
    pub scheduler: String,
    /// Whether sk_lookup may steer. Off unless the test is about it: the test's namespace is the host's.
    pub steering: bool,
    /// How responses may travel; every path that there is if none is given.
    pub paths: Vec<&'static str>,
    /// Where it listens for clients.
    pub address: IpAddr,
    /// Further fields of the listener, such as `, virtualAddresses: [...]`.
    pub listener: String,
    /// The ports for clients and for operators; free ones if none are given.
    pub ports: Option<(u16, u16)>,
    /// The command that starts the gateway, whose own words come behind it; none to start it directly.
    pub command: Vec<String>,
    /// Further words behind `run --config FILE`.
    pub options: Vec<String>,
}

impl Plan {
    /// One pool, with the pods that `servers` are.
    pub fn pool(model: &str, servers: &[Server]) -> Self {
        let pods = servers.iter().map(|server| server.addr).collect();
        Self {
            pools: vec![(model.into(), pods)],
            spec: String::new(),
            scheduler: String::new(),
            steering: false,
            paths: Vec::new(),
            address: Ipv4Addr::LOCALHOST.into(),
            listener: String::new(),
            ports: None,
            command: Vec::new(),
            options: Vec::new(),
        }
    }

    /// As before, with further lines under `spec`, indented by two blanks.
    pub fn spec(mut self, lines: &str) -> Self {
        self.spec.push_str(lines.trim_end());
        self.spec.push('\n');
        self
    }

    /// As before, with further lines under each scheduler, indented by four blanks.
    pub fn scheduler(mut self, lines: &str) -> Self {
        self.scheduler.push_str(lines.trim_end());
        self.scheduler.push('\n');
        self
    }

    /// The document.
    fn document(&self, port: u16, admin: u16) -> String {
        let steering = if self.steering { "auto" } else { "off" };
        let paths = match self.paths.as_slice() {
            [] => String::new(),
            paths => format!(", paths: [{}]", paths.join(", ")),
        };
        let mut text = format!(
            "apiVersion: gateway.sluice.dev/v1alpha1\nkind: InferenceGatewayConfig\n\
             metadata: {{name: test}}\nspec:\n  \
             listeners: [{{name: http, address: \"{}\", port: {port}{}}}]\n  \
             admin: {{address: 127.0.0.1, port: {admin}}}\n  \
             kernel: {{steering: {steering}{paths}}}\n{}  schedulers:\n",
            self.address, self.listener, self.spec
        );
        for (index, (model, pods)) in self.pools.iter().enumerate() {
            text.push_str(&format!("  - name: pool-{index}\n    modelName: {model}\n    pods:\n"));
            for pod in pods {
                text.push_str(&format!("    - \"{pod}\"\n"));
            }
            text.push_str(&self.scheduler);
        }
        text
    }
}

impl Gateway {
    /// Starts a gateway and waits until every pod that answers has been asked once.
    pub fn start(plan: &Plan) -> Self {
        let gateway = Self::launch(plan);
        gateway.wait("every pod to be observed", |status| {
            pods(status).all(|pod| !pod["signals_age_ms"].is_null() || !pod["trouble"].is_null())
        });
        gateway
    }

    /// Starts a gateway that is to take over from this one, and waits until it has.
    pub fn successor(&self, plan: &Plan) -> Self {
        Self::launch(&self.succeeding(plan))
    }

    /// As `plan`, to take over from this gateway.
    pub fn succeeding(&self, plan: &Plan) -> Plan {
        Plan {
            ports: Some((self.address.port(), self.admin.port())),
            options: vec!["--takeover".into()],
            ..plan.clone()
        }
    }

    /// Starts a gateway and waits only until it listens.
    pub fn launch(plan: &Plan) -> Self {
        match Self::try_launch(plan) {
            Ok(gateway) => gateway,
            Err(log) => panic!("sluice ended:\n{log}"),
        }
    }

    /// As [`Gateway::launch`], for one that may fail; then its log is returned.
    pub fn try_launch(plan: &Plan) -> Result<Self, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let config =
            std::env::temp_dir().join(format!("sluice-test-{}-{number}.yaml", std::process::id()));
        let (port, admin) = plan.ports.unwrap_or_default();
        std::fs::write(&config, plan.document(port, admin)).expect("a writable temporary folder");
        let sluice = binary("sluice");
        let mut command = match plan.command.split_first() {
            None => Command::new(sluice),
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(sluice);
                command
            }
        };
        command.args(["run", "--config"]).arg(&config).args(&plan.options);
        Self::begin(&mut command, config, (port, admin))
    }

    /// Starts a gateway that takes its configuration from a cluster, and waits until it listens.
    pub fn of_cluster(kubeconfig: &Path, namespace: &str) -> Self {
        Self::of_cluster_with(kubeconfig, namespace, &[])
    }

    /// The same with these options as well.
    pub fn of_cluster_with(kubeconfig: &Path, namespace: &str, options: &[&str]) -> Self {
        let mut command = Command::new(binary("sluice"));
        command.args(["run", "--kubernetes", "--namespace", namespace, "--node", "node-1"]);
        command.args(options);
        command.env("KUBECONFIG", kubeconfig);
        match Self::begin(&mut command, PathBuf::new(), (0, 0)) {
            Ok(gateway) => gateway,
            Err(log) => panic!("sluice ended:\n{log}"),
        }
    }

    fn begin(command: &mut Command, config: PathBuf, ports: (u16, u16)) -> Result<Self, String> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the sluice binary starts");
        let log = Arc::new(Mutex::new(String::new()));
        let stderr = child.stderr.take().expect("stderr is piped");
        let kept = Arc::clone(&log);
        let reading = thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.push_str(&line);
                kept.push('\n');
            }
        });
        let reading = Some(reading);
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let (address, admin) = (nowhere, nowhere);
        let mut gateway = Self { address, admin, child, log, reading, config, ports };
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some((address, admin)) = gateway.listening() {
                (gateway.address, gateway.admin) = (address, admin);
                return Ok(gateway);
            }
            if gateway.exited().is_some() {
                gateway.read_log();
                return Err(gateway.log());
            }
            assert!(Instant::now() < deadline, "sluice does not listen:\n{}", gateway.log());
            thread::sleep(TICK);
        }
    }

    /// What it said last may not have been read yet when it has ended.
    fn read_log(&mut self) {
        let _ = self.reading.take().map(thread::JoinHandle::join);
    }

    /// Where it says that it listens: the kernel chose the ports, so that no two tests meet.
    fn listening(&self) -> Option<(SocketAddr, SocketAddr)> {
        let log = self.log();
        let (_, line) = log.split_once("listening on ")?;
        let (addresses, rest) = line.split_once(", admin on ")?;
        let admin = rest.split_whitespace().next()?;
        let first = addresses.split(", ").next()?;
        Some((first.parse().ok()?, admin.parse().ok()?))
    }

    /// Nothing of its log is read as long as this is held; neither is it by [`log`](Self::log).
    pub fn hold_log(&self) -> MutexGuard<'_, String> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// `/status`.
    pub fn status(&self) -> Value {
        let page = self.get("/status").expect("the admin side answers");
        serde_json::from_str(&page).expect("/status is JSON")
    }

    /// The value of one sample of `/metrics`, such as `sluice_pool_requests_total{pool="pool-0",outcome="ok"}`.
    pub fn metric(&self, sample: &str) -> Option<f64> {
        let page = self.get("/metrics").expect("the admin side answers");
        page.lines()
            .find_map(|line| line.strip_prefix(sample)?.strip_prefix(' ')?.trim().parse().ok())
    }

    /// Waits until a sample of `/metrics` has this value: a request is counted a moment after its client
    /// has seen its end.
    pub fn wait_metric(&self, sample: &str, value: f64) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = self.metric(sample);
            if found == Some(value) {
                return;
            }
            assert!(Instant::now() < deadline, "{sample} is {found:?} and not {value}");
            thread::sleep(TICK);
        }
    }

    /// The body of an admin page that answers 200.
    pub fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect_timeout(&self.admin, PATIENCE).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.starts_with("HTTP/1.1 200 ").then(|| body.to_owned())
    }

    /// Waits until `/status` is as it should be, and returns it.
    pub fn wait(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = self.status();
            if is(&status) {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "waited in vain for {what}\nstatus: {status:#}\nlog:\n{}",
                self.log()
            );
            thread::sleep(TICK);
        }
    }

    /// Waits until the gateway has nothing in flight, whatever the pods say.
    pub fn wait_idle(&self) -> Value {
        self.wait("nothing to be in flight", |status| pods(status).all(|pod| pod["in_flight"] == 0))
    }

    /// Writes another configuration into its file.
    pub fn write(&self, plan: &Plan) {
        let (port, admin) = self.ports;
        self.write_text(&plan.document(port, admin));
    }

    /// Writes this into the file of its configuration.
    pub fn write_text(&self, text: &str) {
        std::fs::write(&self.config, text).expect("a writable temporary folder");
    }

    /// Has it read another configuration, and waits until that is in force.
    pub fn reload(&self, plan: &Plan) {
        let done = "sluice_config_reloads_total{result=\"done\"}";
        let before = self.metric(done).expect("reloads are counted");
        self.write(plan);
        self.signal("HUP");
        self.wait_metric(done, before + 1.0);
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Resident memory, in bytes.
    pub fn resident(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// The most that it ever was.
    pub fn peak_resident(&self) -> u64 {
        self.memory("VmHWM:")
    }

    fn memory(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let status = status.expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let line = line.expect("a process has memory");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
    }

    /// Sends a signal, by the name that `kill` knows.
    pub fn signal(&self, name: &str) {
        let done =
            Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status();
        assert!(done.expect("kill runs").success());
    }

    /// How it ended, if it has.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be waited for")
    }

    /// Waits until it has ended.
    pub fn wait_exit(&mut self, within: Duration) -> ExitStatus {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.exited() {
                self.read_log();
                return status;
            }
            assert!(Instant::now() < deadline, "sluice still runs:\n{}", self.log());
            thread::sleep(TICK);
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.config);
        if thread::panicking() {
            eprintln!("--- log of sluice ---\n{}", self.log());
        }
    }
}

/// Every pod of a status page.
pub fn pods(status: &Value) -> impl Iterator<Item = &Value> {
    let pools = status["pools"].as_array().into_iter().flatten();
    pools.flat_map(|pool| pool["pods"].as_array().into_iter().flatten())
}

/// A binary of the workspace, built in the same profile as the test.
pub fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test has a path");
    // Tests lie in target/PROFILE/deps, programs a folder above.
    let folder = test.parent().expect("a program lies in a folder");
    let profile = if folder.ends_with("deps") { folder.parent() } else { Some(folder) };
    let profile = profile.expect("target/PROFILE");
    let path = profile.join(name);
    assert!(
        path.exists(),
        "{} is not built: run `cargo build --workspace --bins` first, or the tests by `cargo xtask test`",
        path.display()
    );
    path
}

/// A port that was free a moment ago. The ephemeral range is not drawn from twice in a row, so that another
/// test is not given the same one before it is bound.
pub fn free_port() -> u16 {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    socket.local_addr().expect("a bound socket has an address").port()
}

/// The machine may be busy with other tests.
pub const PATIENCE: Duration = Duration::from_secs(60);

const TICK: Duration = Duration::from_millis(20);
