//! What TLS costs: handshakes, and requests by HTTP/1.1 and by HTTP/2.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::ensure;

use super::bed::Bed;
use super::report::Report;
use super::request::{self, DelayLimit, Test, measure_all};
use super::spread::Spread;
use super::target::Target;
use super::verdict::Verdict;
use crate::shell;

/// How long and how often.
pub(super) type Options = request::Options;

/// A certificate and its key.
pub(super) struct Identity {
    /// PEM: the certificate.
    pub(super) certificate: PathBuf,
    /// PEM: the key.
    pub(super) key: PathBuf,
    /// PEM: both.
    pub(super) both: PathBuf,
}

/// Measures and prints.
///
/// # Errors
/// Something could not be built or started, or ended on its own.
pub(super) fn run(options: &Options) -> anyhow::Result<()> {
    let Options { seconds, repeats, common } = options;
    ensure!(*seconds > 0 && *repeats > 0, "nothing to measure");
    let bed = Bed::prepare(&common.targets, common.quiet)?.secure()?;
    let mut handshakes = Vec::new();
    let secure = || common.targets.iter().copied().filter(|target| *target != Target::Direct);
    for repeat in 0..*repeats {
        for target in secure() {
            let mut running = bed.start(target, 1)?;
            let seconds = seconds.to_string();
            let words = ["--seconds", &seconds, "handshakes", "--connections", "8"];
            let report = running.measure(&words.map(String::from))?;
            let cost = cost(&report);
            shell::progress(format_args!(
                "{}/{repeats} handshakes {target:8} {cost:5.0} us of CPU each",
                repeat + 1
            ));
            handshakes.push((target, cost));
        }
    }
    let mut outcome = measure_all(&bed, options, &TESTS)?;
    let of = |target| {
        Spread::of(handshakes.iter().filter(|(of, _)| *of == target).map(|(_, cost)| *cost))
    };
    if !common.json {
        println!("CPU us of a whole TLS handshake (P-256), median (min..max) of repeats");
        for target in secure() {
            println!("  {target:8} {}", of(target).map_or("-".to_owned(), |cost| cost.to_string()));
        }
        println!();
    }
    let (ours, theirs) = (of(Target::Sluice), of(Target::Haproxy));
    if ours.and(theirs).is_some() {
        let what = "handshake: CPU".to_owned();
        outcome.verdicts.push(Verdict::ratio(what, LIMIT, "x haproxy", ours, theirs));
    }
    request::print(&outcome, common.json)
}

fn cost(report: &Report) -> f64 {
    report.gateway.cpu_us / report.responses.max(1) as f64
}

impl Identity {
    /// Makes one, in this folder.
    ///
    /// # Errors
    /// openssl is missing or fails.
    pub(super) fn make(folder: &Path) -> anyhow::Result<Self> {
        shell::ensure_program("openssl", "openssl")?;
        let at = |name: &str| folder.join(name);
        let (certificate, key, both) = (at("bench.crt"), at("bench.key"), at("bench.pem"));
        let mut openssl = Command::new("openssl");
        openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]);
        openssl.args(["-nodes", "-days", "30", "-subj", "/CN=bench", "-keyout"]).arg(&key);
        shell::output(openssl.arg("-out").arg(&certificate))?;
        fs::write(&both, [fs::read(&certificate)?, fs::read(&key)?].concat())?;
        Ok(Self { certificate, key, both })
    }
}

const TESTS: [Test; 4] = [
    Test { name: "1 KB at 300/s, TLS", speech: "https", ..SHORT },
    Test { name: "1 KB at 300/s, HTTP/2", speech: "http2", ..SHORT },
    Test { name: "220 KB at 50/s, TLS", speech: "https", ..LONG },
    Test { name: "220 KB at 50/s, HTTP/2", speech: "http2", ..LONG },
];

const SHORT: Test = Test {
    name: "",
    speech: "",
    rate: 300,
    connections: 128,
    size: 1_024,
    streamed: false,
    tokens: 1,
    cpu_limit: LIMIT,
    delay_limit: DelayLimit::TimesHaproxy(LIMIT),
};

const LONG: Test = Test {
    rate: 50,
    connections: 64,
    size: 220 * 1_024,
    streamed: true,
    tokens: 4,
    cpu_limit: 2.0,
    delay_limit: DelayLimit::Microseconds(2_000.0),
    ..SHORT
};

/// Times the plain proxy.
const LIMIT: f64 = 1.3;
