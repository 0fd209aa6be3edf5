//! Metrics of pods: no panic, no more samples than lines, and labels that are parts of their line.
#![no_main]

use gateway_user::observe::exposition::{Samples, shape, unescape};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    let lines = body.split(|byte| *byte == b'\n').count();
    let mut samples = Samples::new(body, &[""]);
    let mut count = 0;
    for sample in samples.by_ref() {
        count += 1;
        assert!(!sample.name.is_empty());
        for label in sample.labels() {
            let text = unescape(label.raw);
            assert!(text.len() <= 3 * label.raw.len());
        }
        let _ = (sample.series(), sample.label("engine"), sample.label("model_name"));
    }
    assert!(count + samples.unreadable() as usize <= lines);
    let some = Samples::new(body, &["vllm:", "sglang:"]).count();
    assert!(some <= count);
    let _ = shape(body);
});
