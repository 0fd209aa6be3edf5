//! How fast a pod is: seconds to the first token by the prompt tokens to compute until then, and
//! seconds a token by the sequences that run along.
//!
//! Each is a [`Line`]. A [`Learner`] begins with a prior (by the GPU's name, scaled by what the pool's
//! other pods have turned out to be) and fits the line to what requests took: least squares of the
//! relative errors, decayed by count and by time, each value bounded before it counts. With the last
//! values' age the prior comes back, so that a pod that was slow once is tried again.
//!
//! Values stay finite and above 0 whatever is observed. No clock: times are passed in.

use std::time::Duration;

/// `at_zero + per_one * x` seconds; always finite and positive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    at_zero: f32,
    per_one: f32,
}

/// How fast a pod is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Seconds to the first token, by the prompt tokens that are computed until then.
    pub first: Line,
    /// Seconds from one token of a sequence to its next, by the sequences that run.
    pub token: Line,
}

/// What one gateway, or several, have seen of a pod's speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Known {
    /// The lines through what was seen.
    pub speed: Speed,
    /// Observations of first tokens, and of tokens, that count.
    pub counts: (f32, f32),
}

/// Learns one pod's speed.
#[derive(Clone, Debug)]
pub struct Learner {
    prior: Speed,
    speed: Speed,
    /// What peers know.
    heard: Option<Known>,
    first: Fit,
    token: Fit,
}

/// How much faster or slower than their priors pods have turned out to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    /// Of the seconds to the first token.
    pub first: f32,
    /// Of the seconds a token.
    pub token: f32,
}

impl Line {
    /// A line with both parts brought within what any server can be.
    pub fn new(at_zero: f32, per_one: f32) -> Self {
        Self { at_zero: bounded(at_zero, AT_ZERO), per_one: bounded(per_one, PER_ONE) }
    }

    /// Seconds at `x`, which is not below 0.
    pub fn at(self, x: f32) -> f32 {
        self.at_zero + self.per_one * if x > 0.0 { x.min(MOST_X) } else { 0.0 }
    }

    /// Seconds at 0.
    pub fn at_zero(self) -> f32 {
        self.at_zero
    }

    /// Seconds that each further one adds.
    pub fn per_one(self) -> f32 {
        self.per_one
    }

    /// The same, `factor` times as long.
    pub fn scaled(self, factor: f32) -> Self {
        Self::new(self.at_zero * factor, self.per_one * factor)
    }

    /// From this line to `to`, by share: each part geometrically. Ratios whose logarithm is below `alike` are
    /// chance and count as none.
    fn toward(self, to: Self, share: f32, alike: f32) -> Self {
        let between = |from: f32, to: f32| {
            let apart = (to / from).ln();
            from * (share * apart.signum() * (apart.abs() - alike).max(0.0)).exp()
        };
        Self::new(between(self.at_zero, to.at_zero), between(self.per_one, to.per_one))
    }
}

impl Speed {
    /// The same with other factors of time.
    pub fn scaled(self, factors: Factors) -> Self {
        Self { first: self.first.scaled(factors.first), token: self.token.scaled(factors.token) }
    }
}

impl Speed {
    /// From this speed to what is known by so many observations.
    fn toward(self, to: Self, (first, token): (f32, f32)) -> Self {
        let share = |count: f32| count / (count + TRUST_POOL as f32);
        Self {
            first: self.first.toward(to.first, share(first), 0.0),
            token: self.token.toward(to.token, share(token), 0.0),
        }
    }
}

impl Known {
    /// What both know together.
    pub fn join(self, other: Self) -> Self {
        let share = |own: f32, other: f32| other / (own + other).max(f32::MIN_POSITIVE);
        let (first, token) = (self.counts.0 + other.counts.0, self.counts.1 + other.counts.1);
        Self {
            speed: Speed {
                first: self.speed.first.toward(
                    other.speed.first,
                    share(self.counts.0, other.counts.0),
                    0.0,
                ),
                token: self.speed.token.toward(
                    other.speed.token,
                    share(self.counts.1, other.counts.1),
                    0.0,
                ),
            },
            counts: (first, token),
        }
    }

    /// The same after some time, in which it counts less and less.
    pub fn faded(self, passed: Duration) -> Self {
        let left = fading(passed) as f32;
        Self { counts: (self.counts.0 * left, self.counts.1 * left), ..self }
    }
}

impl Default for Speed {
    fn default() -> Self {
        prior(None)
    }
}

impl Default for Factors {
    fn default() -> Self {
        Self { first: 1.0, token: 1.0 }
    }
}

/// What is assumed of a pod with this GPU: an 8B model in 16 bits on one of them. How a model's size moves
/// all GPUs alike is learned from the pool; what counts here is how they stand to each other.
///
/// The name is looked for anywhere in `gpu`, which may be a label (`h100`) or what a driver says
/// (`NVIDIA H100 80GB HBM3`); a name that is not known is taken for a card of the middle.
pub fn prior(gpu: Option<&str>) -> Speed {
    let known = gpu.and_then(|gpu| GPUS.iter().find(|known| contains(gpu, known.name)));
    let Gpu { base, prefill, step, sequence, .. } = known.unwrap_or(&UNKNOWN);
    Speed {
        first: Line::new(base / 1e3, 1.0 / prefill),
        token: Line::new(step / 1e3, sequence / 1e3),
    }
}

/// Makes what is known of all pods of a pool each one's prior: pods with the same GPU by name are taken to be
/// alike until they prove otherwise, and what all have turned out to be against their GPUs' priors holds
/// for a GPU that has not been seen at work. For now and then; allocates.
pub fn share<'a>(pods: &mut [(Option<&'a str>, &mut Learner)], now: Duration) {
    let mut groups: Vec<(Option<&'a str>, Speed, Fit, Fit)> = Vec::new();
    for (gpu, learner) in &*pods {
        match groups.iter_mut().find(|group| group.0 == *gpu) {
            Some((.., first, token)) => {
                first.join(&learner.first);
                token.join(&learner.token);
            }
            None => groups.push((*gpu, prior(*gpu), learner.first, learner.token)),
        }
    }
    for (.., first, token) in &mut groups {
        first.fade(now);
        token.fade(now);
    }
    let middle = |mut factors: Vec<f32>| {
        factors.sort_unstable_by(f32::total_cmp);
        factors.get(factors.len() / 2).copied().unwrap_or(1.0)
    };
    let first = groups.iter().filter_map(|(_, prior, first, _)| first.factor(prior.first));
    let token = groups.iter().filter_map(|(_, prior, _, token)| token.factor(prior.token));
    let factors = Factors { first: middle(first.collect()), token: middle(token.collect()) };
    for (gpu, learner) in pods {
        let Some((_, prior, first, token)) = groups.iter().find(|group| group.0 == *gpu) else {
            continue;
        };
        let prior = prior.scaled(factors);
        learner.prior = Speed {
            first: first.line(prior.first, FAR_WORK, (TRUST_POOL, 0.0), now),
            token: token.line(prior.token, FAR_RUNNING, (TRUST_POOL, 0.0), now),
        };
        if let Some(heard) = learner.heard {
            learner.prior = learner.prior.toward(heard.speed, heard.counts);
        }
        learner.refresh(now);
    }
}

impl Learner {
    /// Knows no more than the prior.
    pub fn new(prior: Speed) -> Self {
        Self { prior, speed: prior, heard: None, first: Fit::default(), token: Fit::default() }
    }

    /// The speed, as of the last observation or [`Self::refresh`].
    pub fn speed(&self) -> Speed {
        self.speed
    }

    /// What was seen here, as of `now`; peers' observations are not in it.
    pub fn known(&self, now: Duration) -> Known {
        let count = |fit: &Fit| (fit.count * fading(now.saturating_sub(fit.last))) as f32;
        Known {
            speed: Speed {
                first: self.first.line(self.prior.first, FAR_WORK, (0.0, 0.0), now),
                token: self.token.line(self.prior.token, FAR_RUNNING, (0.0, 0.0), now),
            },
            counts: (count(&self.first), count(&self.token)),
        }
    }

    /// Peers have seen this; with the next [`share`] it becomes a part of the prior.
    pub fn hear(&mut self, known: Option<Known>) {
        self.heard = known;
    }

    /// The first token came `seconds` after a request was sent that had `work` prompt tokens before it, its
    /// own uncached ones included.
    pub fn first_token(&mut self, work: f32, seconds: f32, now: Duration) {
        self.first.observe(self.speed.first, self.prior.first, work, seconds, now);
        self.refresh(now);
    }

    /// A token took `seconds`, on average, while `running` sequences ran.
    pub fn token(&mut self, running: f32, seconds: f32, now: Duration) {
        self.token.observe(self.speed.token, self.prior.token, running, seconds, now);
        self.refresh(now);
    }

    /// Lets time pass: what was observed counts less and less.
    pub fn refresh(&mut self, now: Duration) {
        self.speed = Speed {
            first: self.first.line(self.prior.first, FAR_WORK, (TRUST, ALIKE), now),
            token: self.token.line(self.prior.token, FAR_RUNNING, (TRUST, ALIKE), now),
        };
    }
}

/// Decayed sums over observations, each weighted by one over the square of what the prior has for it.
#[derive(Clone, Copy, Debug, Default)]
struct Fit {
    /// Observations, decayed.
    count: f64,
    weight: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
    /// Squares of how far each ratio to the prior, as a logarithm, was from the one before: half of their mean is how
    /// much observations scatter, whatever they are about.
    scatter: f64,
    ratio: Option<f32>,
    last: Duration,
    /// Observations in a row that were far above (or below 0: far below) what was expected.
    streak: i8,
}

impl Fit {
    fn observe(&mut self, expected: Line, prior: Line, x: f32, y: f32, now: Duration) {
        if !(x.is_finite() && y.is_finite() && x >= 0.0 && y > 0.0) {
            return;
        }
        let expected = expected.at(x);
        self.streak = match y / expected {
            ratio if ratio > FAR => self.streak.max(0).saturating_add(1),
            ratio if ratio < 1.0 / FAR => self.streak.min(0).saturating_sub(1),
            _ => 0,
        };
        let faded = fading(now.saturating_sub(self.last));
        self.decay(KEEP * faded);
        // Once is chance. Several in a row is another pod than before, and what it was no longer counts; that
        // it is known as well as before stays true.
        if self.streak.unsigned_abs() >= STREAK {
            let count = self.count;
            self.decay(KEEP_CHANGED);
            self.count = count;
        }
        self.last = self.last.max(now);
        let ratio = (y / prior.at(x)).ln();
        let apart = self.ratio.map_or(0.0, |before| f64::from((ratio - before).clamp(-1.0, 1.0)));
        self.scatter += apart * apart / 2.0;
        self.ratio = Some(ratio);
        let y = f64::from(y.clamp(expected / BOUND, expected * BOUND));
        let x = f64::from(x.min(MOST_X));
        // By the prior and not by what is expected now: of a pod that has become slower, the new values would
        // count for little.
        let weight = f64::from(prior.at(x as f32)).powi(-2);
        self.count += 1.0;
        self.weight += weight;
        self.x += weight * x;
        self.y += weight * y;
        self.xx += weight * x * x;
        self.xy += weight * x * y;
    }

    /// Adds what another has seen.
    fn join(&mut self, other: &Self) {
        // As of the same moment: a pod that has been idle for an hour says little.
        let last = self.last.max(other.last);
        self.fade(last);
        let mut other = *other;
        other.fade(last);
        self.count += other.count;
        self.weight += other.weight;
        self.x += other.x;
        self.y += other.y;
        self.xx += other.xx;
        self.xy += other.xy;
        self.scatter += other.scatter;
    }

    /// Lets time pass.
    fn fade(&mut self, now: Duration) {
        self.decay(fading(now.saturating_sub(self.last)));
        self.last = self.last.max(now);
    }

    fn decay(&mut self, keep: f64) {
        for sum in [
            &mut self.count,
            &mut self.weight,
            &mut self.x,
            &mut self.y,
            &mut self.xx,
            &mut self.xy,
            &mut self.scatter,
        ] {
            *sum *= keep;
        }
    }

    /// How many times as long as by `prior` things took; `None` with too little to say so.
    fn factor(&self, prior: Line) -> Option<f32> {
        if self.count < ENOUGH {
            return None;
        }
        let (a, b) = (f64::from(prior.at_zero), f64::from(prior.per_one));
        // The least squares of the relative errors of `factor * prior`.
        let factor = (a * self.y + b * self.xy)
            / (a * a * self.weight + 2.0 * a * b * self.x + b * b * self.xx);
        (factor.is_finite() && factor > 0.0).then_some(factor as f32)
    }

    /// The logarithm of a ratio that `count` observations that scatter so much may well show by chance.
    fn chance(&self, count: f64) -> f32 {
        let variance = (self.scatter + SCATTER * SCATTER) / (self.count + 1.0);
        (ERRORS * (variance / count.max(1.0)).sqrt()) as f32
    }

    /// The line through the observations. Where they do not tell the two parts apart (all at one x), these
    /// stand to each other as in the prior, `far` being an x that is well away from 0.
    fn line(&self, prior: Line, far: f32, (trust, alike): (f64, f32), now: Duration) -> Line {
        let count = self.count * fading(now.saturating_sub(self.last));
        let Some(factor) = (Self { count: self.count.max(ENOUGH), ..*self })
            .factor(prior)
            .filter(|_| count > 0.01)
        else {
            return prior;
        };
        let scaled = prior.scaled(factor);
        let mut sums = *self;
        for x in [0.0, far] {
            let y = f64::from(scaled.at(x));
            let (x, weight) = (f64::from(x), PRIOR / (y * y));
            sums.weight += weight;
            sums.x += weight * x;
            sums.y += weight * y;
            sums.xx += weight * x * x;
            sums.xy += weight * x * y;
        }
        let determinant = sums.weight * sums.xx - sums.x * sums.x;
        let slope = (sums.weight * sums.xy - sums.x * sums.y) / determinant;
        let slope = bounded(slope as f32, (scaled.per_one / SKEW, scaled.per_one * SKEW));
        let at_zero = ((sums.y - f64::from(slope) * sums.x) / sums.weight) as f32;
        let at_zero = bounded(at_zero, (scaled.at_zero / SKEW, scaled.at_zero * SKEW));
        let alike = if alike > 0.0 { alike.max(self.chance(count)) } else { 0.0 };
        prior.toward(Line::new(at_zero, slope), (count / (count + trust)) as f32, alike)
    }
}

/// `value` within `range`; its lower end for what is no number.
fn bounded(value: f32, range: (f32, f32)) -> f32 {
    if value > range.0 { value.min(range.1) } else { range.0 }
}

/// What is left of an observation after some time.
fn fading(passed: Duration) -> f64 {
    (-passed.as_secs_f64() / HALF_LIFE.as_secs_f64()).exp2()
}

fn contains(text: &str, name: &str) -> bool {
    text.as_bytes().windows(name.len()).any(|part| part.eq_ignore_ascii_case(name.as_bytes()))
}

/// One kind of GPU: milliseconds to the first token without a prompt, prompt tokens a second, milliseconds a
/// token alone, and for each further sequence.
struct Gpu {
    name: &'static str,
    base: f32,
    prefill: f32,
    step: f32,
    sequence: f32,
}

const fn gpu(name: &'static str, base: f32, prefill: f32, step: f32, sequence: f32) -> Gpu {
    Gpu { name, base, prefill, step, sequence }
}

/// Prefill goes by the dense 16-bit operations a second at about 40 %, a lone token by 16 GB of weights over
/// the memory's bandwidth with some overhead. Longer names come before those that they contain.
const GPUS: [Gpu; 19] = [
    gpu("gb200", 15.0, 42_000.0, 4.0, 0.03),
    gpu("b200", 15.0, 40_000.0, 4.2, 0.03),
    gpu("gh200", 18.0, 20_000.0, 6.0, 0.05),
    gpu("h200", 18.0, 20_000.0, 5.5, 0.05),
    gpu("h100", 20.0, 20_000.0, 7.0, 0.06),
    gpu("h800", 20.0, 20_000.0, 7.0, 0.06),
    gpu("h20", 30.0, 3_500.0, 6.0, 0.08),
    gpu("a100", 30.0, 7_500.0, 10.0, 0.1),
    gpu("a800", 30.0, 7_500.0, 10.0, 0.1),
    gpu("mi355", 15.0, 40_000.0, 4.2, 0.03),
    gpu("mi325", 18.0, 20_000.0, 6.0, 0.05),
    gpu("mi300", 20.0, 18_000.0, 6.5, 0.06),
    gpu("l40", 35.0, 7_000.0, 20.0, 0.25),
    gpu("4090", 35.0, 5_000.0, 18.0, 0.3),
    gpu("a10", 50.0, 2_500.0, 29.0, 0.8),
    gpu("v100", 50.0, 2_200.0, 20.0, 0.8),
    gpu("l4", 60.0, 2_000.0, 56.0, 0.9),
    gpu("t4", 80.0, 1_000.0, 55.0, 1.5),
    gpu("gaudi", 25.0, 12_000.0, 8.0, 0.1),
];

const UNKNOWN: Gpu = gpu("", 30.0, 8_000.0, 12.0, 0.15);

/// Bounds of a line's value at 0, in seconds.
const AT_ZERO: (f32, f32) = (1e-4, 600.0);

/// Bounds of what one more adds, in seconds.
const PER_ONE: (f32, f32) = (1e-7, 10.0);

/// The largest x that counts: more tokens than all the KV caches hold.
const MOST_X: f32 = 1e9;

/// An x far from 0, for prompts and for sequences.
const FAR_WORK: f32 = 4096.0;
const FAR_RUNNING: f32 = 64.0;

/// Observations count half after this time.
const HALF_LIFE: Duration = Duration::from_secs(60);

/// What is left of the earlier observations with each new one: about the last 20 count.
const KEEP: f64 = 0.95;

/// The same once several in a row were far from what was expected.
const KEEP_CHANGED: f64 = 0.3;

/// Observations in a row, and how many times too much or too little each of them is.
const STREAK: u8 = 3;
const FAR: f32 = 1.6;

/// One observation counts for at most this many times what was expected, and at least one such part.
const BOUND: f32 = 4.0;

/// Observations for which the prior's slope stands in.
const PRIOR: f64 = 1.0;

/// With this many observations half of the way from the prior is gone: for what all pods have shown together,
/// and for one, which takes more to be told from the others.
const TRUST_POOL: f64 = 1.0;
const TRUST: f64 = 2.0;

/// The logarithm of a ratio between one pod and its like that is chance, or pods that are alike would not be
/// treated so.
const ALIKE: f32 = 0.1;

/// How much observations scatter until they have shown it, as a logarithm, and how many standard errors are chance:
/// a pod that looks slower than its like gets no requests that could show that it is not.
const SCATTER: f64 = 0.2;
const ERRORS: f64 = 2.0;

/// Observations with which a pod's factor speaks for others.
const ENOUGH: f64 = 3.0;

/// How far the two parts of a line may drift from how the prior has them.
const SKEW: f32 = 16.0;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn is_near(found: f32, expected: f32, share: f32) -> bool {
        (found / expected - 1.0).abs() <= share
    }

    #[test]
    fn gpus_are_told_by_name() {
        let of = |gpu| prior(Some(gpu));
        for (name, same) in [
            ("NVIDIA H100 80GB HBM3", "h100"),
            ("NVIDIA-A100-SXM4-80GB", "a100"),
            ("NVIDIA GB200", "gb200"),
            ("AMD Instinct MI300X", "mi300"),
            ("NVIDIA L40S", "l40"),
            ("NVIDIA A10G", "a10"),
            ("Tesla T4", "t4"),
        ] {
            assert_eq!(of(name), of(same), "{name}");
        }
        assert_eq!(of("abacus"), prior(None));
        assert_eq!(of(""), prior(None));
        // From fast to slow, in both.
        let order = ["b200", "h200", "h100", "a100", "l40s", "a10", "l4"].map(of);
        for pair in order.windows(2) {
            assert!(pair[0].first.at(2000.0) <= pair[1].first.at(2000.0), "{pair:?}");
            assert!(pair[0].token.at(32.0) <= pair[1].token.at(32.0), "{pair:?}");
        }
        // A longer name is not shadowed by a shorter one that it contains.
        for (place, known) in GPUS.iter().enumerate() {
            let first = GPUS.iter().position(|other| contains(known.name, other.name));
            assert_eq!(first, Some(place), "{}", known.name);
        }
    }

    #[test]
    fn a_line_is_learned() {
        let truth = Line::new(0.05, 1.0 / 3000.0);
        let mut learner = Learner::new(prior(None));
        for n in 0..40 {
            let work = [300.0, 1000.0, 4000.0][n % 3];
            learner.first_token(work, truth.at(work), at(n as u64));
        }
        for work in [0.0, 500.0, 5000.0] {
            let found = learner.speed().first.at(work);
            assert!(is_near(found, truth.at(work), 0.3), "{work}: {found} of {}", truth.at(work));
        }
        assert_eq!(learner.speed().token, prior(None).token);
    }

    #[test]
    fn at_one_place_only_the_level_is_learned() {
        let mut learner = Learner::new(prior(None));
        let three_times = prior(None).token.scaled(3.0);
        for n in 0..40 {
            learner.token(20.0, three_times.at(20.0), at(n));
        }
        let Line { at_zero, per_one } = learner.speed().token;
        assert!(is_near(at_zero, three_times.at_zero, 0.25), "{at_zero}");
        assert!(is_near(per_one, three_times.per_one, 0.25), "{per_one}");
    }

    #[test]
    fn one_outlier_moves_little_and_a_change_is_learned_soon() {
        let mut learner = Learner::new(prior(None));
        let usual = prior(None).first.at(1000.0);
        (0..40).for_each(|n| learner.first_token(1000.0, usual, at(n)));
        learner.first_token(1000.0, 1000.0 * usual, at(40));
        let after_one = learner.speed().first.at(1000.0);
        assert!(after_one < 1.3 * usual, "{after_one} of {usual}");
        (41..51).for_each(|n| learner.first_token(1000.0, 5.0 * usual, at(n)));
        let after_more = learner.speed().first.at(1000.0);
        assert!(after_more > 3.0 * usual, "{after_more} of {usual}");
    }

    #[test]
    fn what_was_learned_fades() {
        let mut learner = Learner::new(prior(None));
        (0..20).for_each(|n| learner.token(8.0, 10.0 * prior(None).token.at(8.0), at(n)));
        let learned = learner.speed().token.at(8.0);
        learner.refresh(at(3600));
        assert!(learned > 4.0 * prior(None).token.at(8.0));
        assert_eq!(learner.speed(), prior(None));
    }

    #[test]
    fn chance_makes_no_difference_between_pods() {
        let mut learner = Learner::new(prior(None));
        let first = prior(None).first;
        (0..40).for_each(|n| learner.first_token(1000.0, 1.05 * first.at(1000.0), at(n)));
        assert_eq!(learner.speed().first, first);
    }

    #[test]
    fn few_observations_that_scatter_make_no_difference_and_many_do() {
        let first = prior(None).first;
        let after = |count: u64| {
            let mut learner = Learner::new(prior(None));
            for n in 0..count {
                // A third slower on average, now more and now less.
                let slower = if n % 2 == 0 { 1.75 } else { 1.0 };
                learner.first_token(1000.0, slower * first.at(1000.0), at(n / 10));
            }
            learner.speed().first.at(1000.0) / first.at(1000.0)
        };
        assert!(is_near(after(4), 1.0, 1e-3), "{}", after(4));
        assert!(after(60) > 1.1, "{}", after(60));
    }

    #[test]
    fn pods_stand_in_for_each_other() {
        let learner = || Learner::new(prior(None));
        let mut pods = [("h100", learner()), ("h100", learner()), ("l4", learner())];
        let h100 = prior(Some("h100"));
        for n in 0..40 {
            pods[0].1.first_token(2000.0, 4.0 * h100.first.at(2000.0), at(n));
        }
        let mut all: Vec<_> = pods.iter_mut().map(|(gpu, learner)| (Some(*gpu), learner)).collect();
        share(&mut all, at(40));
        // The same GPU is as slow, and another one slower by as much than was assumed of it.
        let [of_first, of_second, of_l4] =
            pods.map(|(_, learner)| learner.speed().first.at(2000.0));
        assert!(is_near(of_second, of_first, 0.3), "{of_first} {of_second}");
        let expected = 4.0 * prior(Some("l4")).first.at(2000.0);
        assert!(is_near(of_l4, expected, 0.4), "{of_l4} of {expected}");
        share(&mut [], at(0));
    }

    #[test]
    fn a_pod_that_was_slow_once_is_tried_again_though_it_is_the_only_one_of_its_kind() {
        let learner = || Learner::new(prior(None));
        let mut pods = [("h100", learner()), ("a10", learner())];
        let a10 = prior(Some("a10")).first.at(1000.0);
        for n in 0..10 {
            pods[1].1.first_token(1000.0, 5.0 * a10, at(n));
        }
        let mut of_a10 = |now| {
            let h100 = prior(Some("h100")).first.at(1000.0);
            pods[0].1.first_token(1000.0, h100, now);
            let all = pods.iter_mut().map(|(gpu, learner)| (Some(*gpu), learner));
            share(&mut all.collect::<Vec<_>>(), now);
            pods[1].1.speed().first.at(1000.0)
        };
        assert!(of_a10(at(10)) > 2.0 * a10);
        assert!(of_a10(at(1000)) < 1.5 * a10);
    }

    proptest! {
        /// Nothing that is observed makes a speed that is no number, 0 or without bound.
        #[test]
        fn speeds_stay_speeds(
            seen in prop::collection::vec((any::<f32>(), any::<f32>(), any::<bool>(), 0..1u64 << 40), 0..60),
            x in 0.0..1e9_f32,
        ) {
            let mut learner = Learner::new(prior(None));
            for (work, seconds, first, now) in seen {
                let now = Duration::from_micros(now);
                if first {
                    learner.first_token(work, seconds, now);
                } else {
                    learner.token(work, seconds, now);
                }
                share(&mut [(None, &mut learner)], now);
            }
            for line in [learner.speed().first, learner.speed().token] {
                prop_assert!(line.at_zero() > 0.0 && line.per_one() > 0.0, "{:?}", line);
                prop_assert!(line.at(x).is_finite() && line.at(x) > 0.0, "{:?}", line);
            }
        }
    }
}
