//! What one pick costs, by the size of the pool: `cargo bench -p sluice-tests --bench schedule`.
//!
//! The bounds: under 40 us among 64 pods, under 400 us among 1,024, no allocation in the pick. `decision` is all that the
//! daemon does from a body that has been read to a reserved place: the prompt's hashes, the look-up in the prefix index, a
//! view of each pod, the pick, the ledgers.
#![expect(clippy::indexing_slicing, clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::hint::black_box;
use std::time::Duration;

use divan::counter::ItemsCount;
use divan::{AllocProfiler, Bencher};
use gateway_user::config::{self, Saturation};
use gateway_user::metrics::{Build, Metrics};
use gateway_user::observe::{EngineKind, Reading};
use gateway_user::pool::{Ask, Pool, Settings};
use gateway_user::request::scan::Scanner;
use gateway_user::schedule::prefix::Prompt;
use gateway_user::schedule::{
    AdapterFit, Demand, Own, Picker, PodView, Policy, Preset, Profile, Scorer, Scratch, Signals,
    Since, Weighted, pick,
};

use tokio::time::Instant;

#[global_allocator]
static ALLOC: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

/// The default: pods with every load, one is the cheapest.
#[divan::bench(args = [4, 64, 256, 1024])]
fn cost(bencher: Bencher<'_, '_>, pods: usize) {
    run(bencher, &mixed(pods), Policy::Cost(Preset::LATENCY));
}

/// The default among idle pods: all are equal, and the lot decides.
#[divan::bench(args = [4, 64, 256, 1024])]
fn cost_idle(bencher: Bencher<'_, '_>, pods: usize) {
    let mut pod = busy(&mut fastrand::Rng::with_seed(1));
    pod.in_flight = 0;
    pod.own = Own::default();
    pod.signals =
        Signals { kv_usage: Some(0.0), waiting: Some(0), running: Some(0), ..pod.signals };
    run(bencher, &vec![pod; pods], Policy::Cost(Preset::LATENCY));
}

/// All scorers there are.
#[divan::bench(args = [4, 64, 256, 1024])]
fn scorers(bencher: Bencher<'_, '_>, pods: usize) {
    let scorers = Scorer::ALL.map(|scorer| Weighted { scorer, weight: 1.0 }).to_vec();
    run(bencher, &mixed(pods), Policy::Scorers { scorers, picker: Picker::MaxScore });
}

/// A request of 2,000 tokens, of which a pod in eight has the first half, to a pool where every pod has some.
#[divan::bench(args = [4, 64, 256, 1024])]
fn decision(bencher: Bencher<'_, '_>, pods: usize) {
    let list: Vec<_> =
        (0..pods).map(|pod| format!("10.0.{}.{}", pod / 250, pod % 250 + 1)).collect();
    let text = format!(
        "apiVersion: gateway.sluice.dev/v1alpha1\nkind: InferenceGatewayConfig\nmetadata: {{name: bench}}\nspec:\n  \
         schedulers:\n  - name: pool\n    modelName: base\n    pods: [{}]\n",
        list.join(", ")
    );
    let config = config::parse(&text, "bench.yaml").unwrap().config;
    let scheduler = &config.schedulers[0];
    let metrics = Metrics::new(Build { version: "0", revision: "0" }, Vec::new);
    let pool = Pool::new(scheduler, Settings::new(scheduler, None), metrics.pool("pool"), 3, None);
    let now = Instant::now();
    let mut rng = fastrand::Rng::with_seed(1);
    for pod in pool.pods() {
        let signals = busy(&mut rng).signals;
        let engine = EngineKind::Vllm;
        pool.observed(pod.id, Reading { engine, signals, ..Reading::default() }, now);
    }
    let words = "all that was said before ".repeat(160);
    let body = format!("{{\"model\": \"base\", \"prompt\": \"{words}\"}}");
    let mut scanner = Scanner::new();
    scanner.feed(body.as_bytes()).unwrap();
    let parts = scanner.finish().unwrap().prompt;
    let read = || pool.read_prompt(body.as_bytes(), &parts, None);
    let half = read();
    let half = Prompt { blocks: half.blocks[..half.blocks.len() / 2].to_vec(), ..half };
    fn ask(prompt: &Prompt) -> Ask<'_> {
        Ask { prompt, stream: true, ..Ask::default() }
    }
    let held: Vec<_> = (0..pods).map(|_| pool.reserve(ask(&half), now).unwrap()).collect();
    held.iter().step_by(8).for_each(|place| place.sent(&half));
    bencher.counter(ItemsCount::new(pods)).bench_local(|| {
        let prompt = read();
        pool.reserve(ask(black_box(&prompt)), now).unwrap()
    });
}

fn mixed(pods: usize) -> Vec<PodView> {
    let mut rng = fastrand::Rng::with_seed(1);
    (0..pods).map(|_| busy(&mut rng)).collect()
}

fn run(bencher: Bencher<'_, '_>, pool: &[PodView], policy: Policy) {
    let profile = Profile {
        policy,
        saturation: Saturation { queue_depth: 128, kv_cache: 0.95, in_flight: 1024 },
        max_wait: Duration::from_secs(120),
        stale_after: Duration::from_secs(3),
    };
    let demand = Demand { prompt_tokens: 2000, output_tokens: 300, prefix: Some(7) };
    let mut rng = fastrand::Rng::with_seed(2);
    let mut scratch = Scratch::default();
    let _warm = pick(pool, &demand, &profile, &mut rng, &mut scratch);
    bencher.counter(ItemsCount::new(pool.len())).bench_local(|| {
        pick(black_box(pool), black_box(&demand), black_box(&profile), &mut rng, &mut scratch)
    });
}

fn busy(rng: &mut fastrand::Rng) -> PodView {
    let in_flight = rng.u32(..64);
    PodView {
        key: rng.u64(..),
        ready: true,
        in_flight,
        own: Own {
            pending: in_flight / 8,
            prefill_tokens: in_flight / 8 * 900,
            busy: Duration::from_millis(u64::from(in_flight / 8 * 60)),
            tokens: u64::from(in_flight) * 1200,
            since_scrape: Since { sent: in_flight / 16, tokens: in_flight * 75, finished: 1 },
            overdue: Duration::from_millis(rng.u64(..50)),
        },
        signals: Signals {
            kv_usage: Some(rng.f32() * 0.9),
            waiting: Some(rng.u32(..32)),
            running: Some(rng.u32(..256)),
            adapter_slots: Some(8),
            adapters_active: Some(rng.u32(..=8)),
        },
        age: Some(Duration::from_millis(rng.u64(..100))),
        adapter: AdapterFit::Active,
        kv_tokens: Some(400_000),
        ..PodView::default()
    }
}
