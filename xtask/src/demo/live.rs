//! The live table: what the gateway knows and does, redrawn in place on a terminal, line by line elsewhere.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use super::load::{Tally, WINDOW};
use super::view::{Histogram, Status, percentile};

/// The table on stdout.
pub(super) struct Live {
    start: Instant,
    samples: VecDeque<Sample>,
    terminal: bool,
    /// Lines on the terminal to draw over.
    drawn: usize,
    /// When it was last printed where nothing can be drawn over.
    printed: Option<Instant>,
}

/// The gateway's counters at one time.
struct Sample {
    at: Instant,
    tokens: BTreeMap<String, u64>,
    ttft: Histogram,
}

impl Live {
    /// Nothing drawn yet.
    pub(super) fn new() -> Self {
        Self {
            start: Instant::now(),
            samples: VecDeque::new(),
            terminal: io::stdout().is_terminal(),
            drawn: 0,
            printed: None,
        }
    }

    /// Whether it can be redrawn in place.
    pub(super) fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Takes the gateway's pages and shows them, elsewhere than on a terminal only now and then.
    ///
    /// # Errors
    /// Nobody reads stdout any more.
    pub(super) fn show(&mut self, status: &Status, metrics: &str, tally: &Tally) -> io::Result<()> {
        let now = Instant::now();
        let tokens = status.pods().map(|pod| (pod.name.clone(), pod.tokens)).collect();
        self.samples.push_back(Sample { at: now, tokens, ttft: Histogram::ttft(metrics) });
        // One sample from before the window stays: rates are between it and now.
        while self.samples.get(1).is_some_and(|second| now - second.at >= WINDOW) {
            self.samples.pop_front();
        }
        if !self.terminal && self.printed.is_some_and(|at| now - at < PLAIN_PAUSE) {
            return Ok(());
        }
        self.printed = Some(now);
        let lines = self.lines(status, tally, now);
        self.draw(&lines)
    }

    fn lines(&self, status: &Status, tally: &Tally, now: Instant) -> Vec<String> {
        let (mut rows, mut all) = (Vec::new(), Row { pod: "gateway".to_owned(), ..Row::default() });
        for pod in status.pods() {
            let times: Vec<u64> = tally
                .recent
                .iter()
                .filter(|(at, by, _)| *by == pod.name && now - *at <= WINDOW)
                .map(|(.., us)| *us)
                .collect();
            let ms = |share| percentile(&times, share).map(|us| us as f64 / 1e3);
            let tokens_per_s = self.rate(&pod.name);
            all.in_flight += pod.in_flight;
            all.queue = pod.waiting.map(|more| all.queue.unwrap_or(0) + more).or(all.queue);
            all.tokens_per_s = tokens_per_s.map(|more| all.tokens_per_s.unwrap_or(0.0) + more);
            rows.push(Row {
                pod: pod.name.clone(),
                gpu: pod.gpu.clone().unwrap_or_default(),
                score: pod.score,
                in_flight: pod.in_flight,
                queue: pod.waiting,
                kv_use: pod.kv_usage,
                ttft_p50: ms(0.5),
                ttft_p99: ms(0.99),
                tokens_per_s,
                trouble: pod.trouble.clone(),
            });
        }
        if let (Some(first), Some(last)) = (self.samples.front(), self.samples.back()) {
            let lately = last.ttft.since(&first.ttft);
            all.ttft_p50 = lately.quantile(0.5).map(|seconds| seconds * 1e3);
            all.ttft_p99 = lately.quantile(0.99).map(|seconds| seconds * 1e3);
        }
        rows.push(all);
        let mut lines = table(&rows);
        let seconds = (now - self.start).as_secs();
        let Tally { ok, errors, last_error, .. } = tally;
        lines.push(format!("{seconds} s, the demo's own requests: {ok} ok, {errors} failed"));
        if let Some(error) = last_error {
            lines.push(cut(&format!("last failure: {error}")));
        }
        lines
    }

    /// Tokens a second of a pod, over the window; unknown at first.
    fn rate(&self, pod: &str) -> Option<f64> {
        let (first, last) = (self.samples.front()?, self.samples.back()?);
        let seconds = (last.at - first.at).as_secs_f64();
        let tokens = last.tokens.get(pod)?.saturating_sub(*first.tokens.get(pod)?);
        (seconds > 0.0).then(|| tokens as f64 / seconds)
    }

    fn draw(&mut self, lines: &[String]) -> io::Result<()> {
        let mut text = String::new();
        if self.terminal && self.drawn > 0 {
            // To the start of the first line, and clear from there.
            text.push_str(&format!("\x1b[{}F\x1b[J", self.drawn));
        }
        for line in lines {
            text.push_str(line);
            text.push('\n');
        }
        if !self.terminal {
            text.push('\n');
        }
        self.drawn = lines.len();
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        stdout.flush()
    }
}

/// One line of the table; what is unknown shows as a dash.
#[derive(Debug, Default)]
struct Row {
    pod: String,
    gpu: String,
    score: Option<f64>,
    in_flight: u32,
    queue: Option<u32>,
    kv_use: Option<f64>,
    ttft_p50: Option<f64>,
    ttft_p99: Option<f64>,
    tokens_per_s: Option<f64>,
    trouble: Option<String>,
}

fn table(rows: &[Row]) -> Vec<String> {
    let mut lines = vec![line([
        "pod",
        "GPU",
        "score",
        "in flight",
        "queue",
        "KV use",
        "TTFT p50",
        "TTFT p99",
        "tokens/s",
    ])];
    for row in rows {
        let Row { pod, gpu, in_flight, trouble, .. } = row;
        let ms = |time| show(time, |ms: f64| format!("{ms:.0} ms"));
        lines.push(line([
            pod,
            gpu,
            &show(row.score, |score| format!("{score:.2}")),
            &in_flight.to_string(),
            &show(row.queue, |queue| queue.to_string()),
            &show(row.kv_use, |share| format!("{:.0}%", share * 100.0)),
            &ms(row.ttft_p50),
            &ms(row.ttft_p99),
            &show(row.tokens_per_s, |rate| format!("{rate:.0}")),
        ]));
        if let Some(trouble) = trouble {
            lines.push(cut(&format!("  {pod}: {trouble}")));
        }
    }
    lines
}

fn line(cells: [&str; 9]) -> String {
    let [pod, gpu, score, in_flight, queue, kv, p50, p99, rate] = cells;
    format!(
        "{pod:<8} {gpu:<6} {score:>6} {in_flight:>10} {queue:>6} {kv:>7} {p50:>9} {p99:>9} {rate:>9}"
    )
}

fn show<T>(value: Option<T>, form: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), form)
}

/// A line that wraps would spoil the count of lines to draw over.
fn cut(line: &str) -> String {
    line.chars().take(WIDTH).collect()
}

/// Columns of the narrowest terminal.
const WIDTH: usize = 79;
/// Between two tables where they follow each other.
const PLAIN_PAUSE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_is_a_dash_and_nothing_is_wider_than_a_terminal() {
        let known = Row {
            pod: "pod-1".into(),
            gpu: "h100".into(),
            score: Some(7.456),
            in_flight: 12,
            queue: Some(3),
            kv_use: Some(0.126),
            ttft_p50: Some(58.4),
            ttft_p99: Some(12_345.0),
            tokens_per_s: Some(1_234.5),
            trouble: None,
        };
        let unknown =
            Row { trouble: Some("gone ".repeat(40)), pod: "pod-4".into(), ..Row::default() };
        let lines = table(&[known, unknown]);
        assert_eq!(
            lines.get(1..3).unwrap(),
            [
                "pod-1    h100     7.46         12      3     13%     58 ms  12345 ms      1234",
                "pod-4                -          0      -       -         -         -         -"
            ]
        );
        assert_eq!(lines.len(), 4);
        assert!(lines.iter().all(|line| line.len() <= WIDTH), "{lines:#?}");
    }

    fn status(tokens: u64) -> Status {
        serde_json::from_value(serde_json::json!({
            "ready": true, "reason": null, "steering": {"path": "userspace", "reason": "off"},
            "pools": [{"pods": [{
                "name": "pod-1", "gpu": "h100", "ready": true, "trouble": null, "score": 7.0,
                "in_flight": 2, "tokens": tokens, "signals_age_ms": 3, "kv_usage": 0.5,
                "waiting": 1, "adapters": [],
            }]}],
        }))
        .unwrap()
    }

    #[test]
    fn rates_are_over_the_window() {
        let mut live = Live::new();
        let start = Instant::now();
        for (second, tokens) in [(0, 100), (10, 400)] {
            live.samples.push_back(Sample {
                at: start + Duration::from_secs(second),
                tokens: [("pod-1".to_owned(), tokens)].into(),
                ttft: Histogram::default(),
            });
        }
        let lines = live.lines(&status(400), &Tally::default(), start + Duration::from_secs(10));
        let all = "gateway              -          2      1       -         -         -        30";
        assert_eq!(lines.get(2).map(String::as_str), Some(all));
        assert_eq!(live.rate("pod-9"), None);
    }
}
