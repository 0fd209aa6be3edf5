//! A running API server with its store.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf, absolute};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::programs::Programs;
use crate::process::Process;
use crate::shell;

/// Both programs. They end when it is dropped, the API server first, so that it sees no dying store.
pub(super) struct Cluster {
    apiserver: Member,
    etcd: Member,
    /// How clients reach it, with every right.
    pub(super) kubeconfig: PathBuf,
    /// Where both keep what they write. Beside it lie `audit.log`, a line for each request; `etcd.address`; and the
    /// process ids as `etcd.pid` and `apiserver.pid`.
    pub(super) folder: PathBuf,
}

/// One of the programs, which can be started again.
struct Member {
    command: Command,
    process: Process,
    name: &'static str,
    starts: u32,
}

impl Cluster {
    /// Starts both in a folder, which is made anew, and waits until the API server is ready.
    ///
    /// # Errors
    /// A program is missing, ended, or is not ready in time; the end of its log is in the message.
    pub(super) fn start(programs: &Programs, folder: &Path) -> anyhow::Result<Self> {
        shell::ensure_program("curl", "curl")?;
        shell::ensure_program("openssl", "openssl")?;
        let folder = absolute(folder)?;
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
        }
        // Keys will be in it.
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let [client, peer, port] = free_ports()?;
        let etcd = start_etcd(&programs.etcd, client, peer, &folder)?;
        let token = token()?;
        let apiserver = start_apiserver(&programs.apiserver, client, port, &token, &folder)?;
        let kubeconfig = folder.join("kubeconfig");
        fs::write(folder.join("etcd.address"), format!("127.0.0.1:{client}"))?;
        let mut cluster = Self { apiserver, etcd, kubeconfig, folder };
        cluster.await_ready(port, &token)?;
        let authority = cluster.folder.join("certs/apiserver.crt");
        private(&cluster.kubeconfig, &kubeconfig_text(port, &authority, &token))?;
        Ok(cluster)
    }

    /// Checks that both still run.
    ///
    /// # Errors
    /// One has ended.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        self.etcd.process.check()?;
        self.apiserver.process.check()
    }

    /// Starts what has ended again, as a kubelet does.
    ///
    /// # Errors
    /// It could not be started, or ends again and again.
    pub(super) fn revive(&mut self) -> anyhow::Result<()> {
        let folder = &self.folder;
        self.etcd.revive(folder)?;
        self.apiserver.revive(folder)
    }

    fn await_ready(&mut self, port: u16, token: &str) -> anyhow::Result<()> {
        let folder = self.folder.clone();
        let header = folder.join("header");
        private(&header, &format!("Authorization: Bearer {token}\n"))?;
        let begun = Instant::now();
        let mut ask = Command::new("curl");
        ask.args(["--silent", "--fail", "--max-time", "5", "--cacert"]);
        ask.arg(folder.join("certs/apiserver.crt")).arg("--header");
        ask.arg(format!("@{}", header.display())).arg(format!("https://127.0.0.1:{port}/readyz"));
        ask.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        while !ask.status().context("start curl")?.success() {
            self.check()?;
            if begun.elapsed() > PATIENCE {
                bail!(
                    "the API server is not ready after {PATIENCE:?}; its log is in {}",
                    folder.display()
                );
            }
            sleep(Duration::from_millis(100));
        }
        shell::progress(format_args!(
            "the API server is ready after {:.1} s",
            begun.elapsed().as_secs_f32()
        ));
        Ok(())
    }
}

impl Member {
    fn start(mut command: Command, name: &'static str, folder: &Path) -> anyhow::Result<Self> {
        let process = Process::start(&mut command, None, folder.join(format!("{name}.log")))?;
        let member = Self { command, process, name, starts: 1 };
        member.tell(folder)?;
        Ok(member)
    }

    fn revive(&mut self, folder: &Path) -> anyhow::Result<()> {
        let Err(ended) = self.process.check() else { return Ok(()) };
        if self.starts == MOST_STARTS {
            return Err(ended.context(format!("{} does not stay", self.name)));
        }
        self.starts += 1;
        let log = folder.join(format!("{}-{}.log", self.name, self.starts));
        self.process = Process::start(&mut self.command, None, log)?;
        self.tell(folder)
    }

    fn tell(&self, folder: &Path) -> anyhow::Result<()> {
        let file = folder.join(format!("{}.pid", self.name));
        fs::write(&file, self.process.pid().to_string()).with_context(|| file.display().to_string())
    }
}

fn start_etcd(program: &Path, client: u16, peer: u16, folder: &Path) -> anyhow::Result<Member> {
    let (client, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
    let mut etcd = Command::new(program);
    etcd.args(["--name", "sluice", "--unsafe-no-fsync", "--data-dir"]).arg(folder.join("etcd"));
    etcd.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
    etcd.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    etcd.arg("--initial-cluster").arg(format!("sluice={peer}"));
    Member::start(etcd, "etcd", folder)
}

fn start_apiserver(
    program: &Path,
    store: u16,
    port: u16,
    token: &str,
    folder: &Path,
) -> anyhow::Result<Member> {
    let tokens = folder.join("tokens.csv");
    private(&tokens, &format!("{token},admin,admin,\"system:masters\"\n"))?;
    let key = folder.join("accounts.key");
    let mut openssl = Command::new("openssl");
    openssl.args(["ecparam", "-name", "prime256v1", "-genkey", "-noout"]);
    shell::output(openssl.arg("-out").arg(&key))?;
    let mut apiserver = Command::new(program);
    apiserver.arg(format!("--etcd-servers=http://127.0.0.1:{store}"));
    apiserver.args(["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"]);
    apiserver.arg(format!("--secure-port={port}"));
    // The certificate that it makes there is its own authority.
    apiserver.arg("--cert-dir").arg(folder.join("certs")).arg("--token-auth-file").arg(tokens);
    apiserver.arg("--authorization-mode=RBAC");
    // The service `kubernetes` may not point to a loopback address.
    apiserver.arg("--endpoint-reconciler-type=none");
    // No controller makes the account `default`, without which every pod would be refused.
    apiserver.arg("--disable-admission-plugins=ServiceAccount");
    apiserver.args(["--service-cluster-ip-range=10.96.0.0/24", "--profiling=false"]);
    apiserver.arg("--service-account-issuer=https://kubernetes.default.svc");
    apiserver.arg("--service-account-key-file").arg(&key);
    apiserver.arg("--service-account-signing-key-file").arg(&key);
    let policy = folder.join("audit.yaml");
    fs::write(&policy, AUDIT)?;
    apiserver.arg("--audit-policy-file").arg(policy);
    apiserver.arg("--audit-log-path").arg(folder.join("audit.log"));
    // Each request's line is there when its answer is.
    apiserver.arg("--audit-log-mode=blocking");
    Member::start(apiserver, "apiserver", folder)
}

/// Ports that nobody has now. They are let go before the programs take them, as those cannot be handed a socket.
fn free_ports() -> anyhow::Result<[u16; 3]> {
    let bind = || TcpListener::bind("127.0.0.1:0");
    let (a, b, c) = (bind()?, bind()?, bind()?);
    Ok([a.local_addr()?.port(), b.local_addr()?.port(), c.local_addr()?.port()])
}

/// Chance from the kernel, in hexadecimal digits.
fn token() -> anyhow::Result<String> {
    let mut bytes = [0; 24];
    std::io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Writes a file that only this user can read.
fn private(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes()).with_context(|| path.display().to_string())
}

fn kubeconfig_text(port: u16, authority: &Path, token: &str) -> String {
    format!(
        "apiVersion: v1
kind: Config
current-context: sluice
clusters:
- name: sluice
  cluster: {{server: \"https://127.0.0.1:{port}\", certificate-authority: \"{}\"}}
users:
- name: admin
  user: {{token: {token}}}
contexts:
- name: sluice
  context: {{cluster: sluice, user: admin, namespace: default}}
",
        authority.display()
    )
}

/// Who asks for what, of every request once; of a watch when it begins.
const AUDIT: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
";
/// One that ends more often has something wrong with it.
const MOST_STARTS: u32 = 10;
/// A loaded machine takes its time.
const PATIENCE: Duration = Duration::from_secs(120);
