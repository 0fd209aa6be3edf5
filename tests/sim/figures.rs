//! How a run went: the figures of one seed, and their medians over several.

use serde::Serialize;

/// What clients are promised.
#[derive(Clone, Copy, Debug)]
pub struct Slo {
    /// First token within, milliseconds.
    pub ttft_ms: f64,
    /// Each further one within, milliseconds.
    pub tpot_ms: f64,
}

/// One request that got an answer.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// Which pod gave it.
    pub pod: usize,
    /// From the client's request to the first token.
    pub ttft_ms: f64,
    /// Between two tokens in the mean; `None` of a single one.
    pub tpot_ms: Option<f64>,
    /// From the client's request to the last token.
    pub e2e_ms: f64,
}

/// Totals of a measured window.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Length of the window, seconds.
    pub seconds: f64,
    /// Tokens generated in it.
    pub tokens: u64,
    /// Prompt tokens of the requests that the engines began.
    pub queries: u64,
    /// Of those, found in a prefix cache.
    pub hits: u64,
    /// Requests that no pod was picked for: the 429s.
    pub rejected: u64,
    /// Requests that a dying pod cut off.
    pub failed: u64,
}

/// Figures of a scenario under a policy. Everything is of requests that came in the measured window.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// From the client's request to the first token, milliseconds.
    pub ttft_ms: Quantiles,
    /// Between two tokens of an answer, in its mean, milliseconds.
    pub tpot_ms: Quantiles,
    /// From the client's request to the last token, milliseconds.
    pub e2e_ms: Quantiles,
    /// Tokens generated a second.
    pub tokens_per_s: f64,
    /// Requests a second that kept the scenario's promise of TTFT and TPOT.
    pub goodput: f64,
    /// Share of prompt tokens that engines found in their prefix caches.
    pub hit_rate: f64,
    /// Mean TTFT at the pod where it was longest, over the mean of all.
    pub imbalance: f64,
    /// Requests that got a 429.
    pub rejected: f64,
    /// Requests that a dying pod cut off.
    pub failed: f64,
    /// Requests in all.
    pub requests: f64,
}

/// Of a distribution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// The median.
    pub p50: f64,
    /// One in twenty is above.
    pub p95: f64,
    /// One in a hundred is above.
    pub p99: f64,
}

impl Figures {
    /// Of one run.
    pub fn of(answers: &[Answer], totals: &Totals, slo: &Slo) -> Self {
        let kept = |answer: &&Answer| {
            answer.ttft_ms <= slo.ttft_ms && answer.tpot_ms.is_none_or(|tpot| tpot <= slo.tpot_ms)
        };
        let requests = answers.len() as u64 + totals.rejected + totals.failed;
        Self {
            ttft_ms: Quantiles::of(answers.iter().map(|answer| answer.ttft_ms)),
            tpot_ms: Quantiles::of(answers.iter().filter_map(|answer| answer.tpot_ms)),
            e2e_ms: Quantiles::of(answers.iter().map(|answer| answer.e2e_ms)),
            tokens_per_s: totals.tokens as f64 / totals.seconds,
            goodput: answers.iter().filter(kept).count() as f64 / totals.seconds,
            hit_rate: totals.hits as f64 / (totals.queries as f64).max(1.0),
            imbalance: imbalance(answers),
            rejected: totals.rejected as f64,
            failed: totals.failed as f64,
            requests: requests as f64,
        }
    }

    /// The median of each figure by itself.
    pub fn median(runs: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| median(runs.iter().map(figure));
        let quantiles = |part: fn(&Self) -> Quantiles| Quantiles {
            p50: median(runs.iter().map(|run| part(run).p50)),
            p95: median(runs.iter().map(|run| part(run).p95)),
            p99: median(runs.iter().map(|run| part(run).p99)),
        };
        Self {
            ttft_ms: quantiles(|run| run.ttft_ms),
            tpot_ms: quantiles(|run| run.tpot_ms),
            e2e_ms: quantiles(|run| run.e2e_ms),
            tokens_per_s: of(|run| run.tokens_per_s),
            goodput: of(|run| run.goodput),
            hit_rate: of(|run| run.hit_rate),
            imbalance: of(|run| run.imbalance),
            rejected: of(|run| run.rejected),
            failed: of(|run| run.failed),
            requests: of(|run| run.requests),
        }
    }
}

impl Quantiles {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        // The nearest rank: a value that some request really had.
        let at = |share: f64| {
            let rank = (share * values.len() as f64).ceil() as usize;
            values.get(rank.max(1) - 1).copied().unwrap_or(0.0)
        };
        Self { p50: at(0.5), p95: at(0.95), p99: at(0.99) }
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        len if len % 2 == 1 => values[len / 2],
        len => f64::midpoint(values[len / 2 - 1], values[len / 2]),
    }
}

fn imbalance(answers: &[Answer]) -> f64 {
    let pods = answers.iter().map(|answer| answer.pod + 1).max().unwrap_or(0);
    let mut sums = vec![(0.0, 0.0); pods];
    for answer in answers {
        let (sum, count) = &mut sums[answer.pod];
        *sum += answer.ttft_ms;
        *count += 1.0;
    }
    let mean = sums.iter().map(|(sum, _)| sum).sum::<f64>() / (answers.len() as f64).max(1.0);
    let worst = sums.iter().filter(|(_, count)| *count > 0.0).map(|(sum, count)| sum / count);
    let worst = worst.fold(0.0, f64::max);
    if mean > 0.0 { worst / mean } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(pod: usize, ttft_ms: f64, tpot_ms: Option<f64>) -> Answer {
        Answer { pod, ttft_ms, tpot_ms, e2e_ms: 2.0 * ttft_ms }
    }

    #[test]
    fn figures_of_a_run() {
        let mut answers: Vec<Answer> =
            (1..=100).map(|ms| answer(0, f64::from(ms), Some(10.0))).collect();
        answers[0].tpot_ms = Some(99.0);
        answers[1].tpot_ms = None;
        let totals = Totals {
            seconds: 10.0,
            tokens: 5_000,
            queries: 400,
            hits: 100,
            rejected: 3,
            failed: 1,
        };
        let figures = Figures::of(&answers, &totals, &Slo { ttft_ms: 50.0, tpot_ms: 20.0 });
        assert_eq!(figures.ttft_ms, Quantiles { p50: 50.0, p95: 95.0, p99: 99.0 });
        assert_eq!(figures.e2e_ms.p99, 198.0);
        assert_eq!(figures.tpot_ms, Quantiles { p50: 10.0, p95: 10.0, p99: 99.0 });
        assert_eq!((figures.tokens_per_s, figures.goodput, figures.hit_rate), (500.0, 4.9, 0.25));
        assert_eq!((figures.requests, figures.rejected, figures.imbalance), (104.0, 3.0, 1.0));
        let none = Figures::of(
            &[],
            &Totals { seconds: 1.0, ..totals },
            &Slo { ttft_ms: 1.0, tpot_ms: 1.0 },
        );
        assert_eq!((none.ttft_ms, none.imbalance), (Quantiles::default(), 1.0));
    }

    #[test]
    fn the_slowest_pod_is_the_imbalance() {
        let answers = [answer(0, 10.0, None), answer(2, 10.0, None), answer(2, 40.0, None)];
        assert_eq!(imbalance(&answers), 25.0 / 20.0);
    }

    #[test]
    fn each_figure_has_its_own_median() {
        let run = |tokens_per_s, goodput| Figures { tokens_per_s, goodput, ..Figures::default() };
        let middle = Figures::median(&[run(1.0, 9.0), run(2.0, 7.0), run(9.0, 8.0)]);
        assert_eq!((middle.tokens_per_s, middle.goodput), (2.0, 8.0));
        assert_eq!(Figures::median(&[run(1.0, 4.0), run(2.0, 4.0)]).tokens_per_s, 1.5);
        assert_eq!(Figures::median(&[]), Figures::default());
    }
}
