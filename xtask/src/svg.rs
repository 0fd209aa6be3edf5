//! Scales and shapes of pictures. Pure.

use std::fmt::Write;

/// A scale of so many pixels from 0 to a round number.
pub(crate) struct Linear {
    width: f64,
    step: f64,
    steps: u32,
}

impl Linear {
    pub(crate) fn upto(most: f64, width: f64) -> Self {
        let rough = most.max(1e-3) / 5.0;
        let power = 10_f64.powf(rough.log10().floor());
        let round = [1.0, 2.0, 5.0].into_iter().find(|round| round * power >= rough);
        let step = round.unwrap_or(10.0) * power;
        Self { width, step, steps: (most / step).ceil().max(1.0) as u32 }
    }

    pub(crate) fn at(&self, value: f64) -> f64 {
        (value / (self.step * f64::from(self.steps))).clamp(0.0, 1.0) * self.width
    }

    pub(crate) fn ticks(&self) -> Vec<(f64, String)> {
        let values = (0..=self.steps).map(|number| f64::from(number) * self.step);
        values.map(|value| (value, format!("{value}"))).collect()
    }
}

/// A scale of so many pixels from a power of ten to another, of microseconds.
pub(crate) struct Log {
    width: f64,
    low: i32,
    high: i32,
}

impl Log {
    pub(crate) fn around(values: impl Iterator<Item = f64>, width: f64) -> Self {
        let (least, most) = values.fold((f64::INFINITY, 0.0_f64), |(least, most), value| {
            (least.min(value), most.max(value))
        });
        // What is no time at all has no place on the scale, and is shown at its beginning.
        let low = least.clamp(0.1, 1e9).log10().floor() as i32;
        Self { width, low, high: (most.clamp(0.1, 1e9).log10().ceil() as i32).max(low + 1) }
    }

    pub(crate) fn at(&self, value: f64) -> f64 {
        let share =
            (value.max(1e-9).log10() - f64::from(self.low)) / f64::from(self.high - self.low);
        share.clamp(0.0, 1.0) * self.width
    }

    pub(crate) fn ticks(&self) -> Vec<(f64, String)> {
        let ticks = (self.low..=self.high).map(|power| {
            let value = 10_f64.powi(power);
            let shown = match value {
                us if us < 1e3 => format!("{us} us"),
                us if us < 1e6 => format!("{} ms", us / 1e3),
                us => format!("{} s", us / 1e6),
            };
            (value, shown)
        });
        ticks.collect()
    }
}

/// A line of a scale, down, and what it stands for.
pub(crate) fn axis(text: &mut String, x: f64, top: f64, bottom: f64, shown: &str) {
    // Writing to a string cannot fail, here and below.
    let _ = writeln!(
        text,
        "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top:.1}\" y2=\"{bottom:.1}\" stroke=\"#dddddd\"/>"
    );
    label(text, x, bottom + 14.0, "middle", shown);
}

/// A bar, ten pixels high.
pub(crate) fn rect(text: &mut String, x: f64, y: f64, width: f64, color: &str) {
    let _ = writeln!(
        text,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"10\" fill=\"{color}\"/>"
    );
}

/// A dot, or a ring.
pub(crate) fn circle(text: &mut String, x: f64, y: f64, full: bool, color: &str) {
    let fill = if full { color } else { "#ffffff" };
    let _ = writeln!(
        text,
        "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{fill}\" stroke=\"{color}\" \
         stroke-width=\"2\"/>"
    );
}

/// Some text.
pub(crate) fn label(text: &mut String, x: f64, y: f64, anchor: &str, shown: &str) {
    let _ = writeln!(
        text,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{TEXT}\">{shown}</text>"
    );
}

/// Colours: of what a picture is about, of what stands beside it, of text.
pub(crate) const DARK: &str = "#1b5e7a";
pub(crate) const LIGHT: &str = "#9cc8d8";
pub(crate) const TEXT: &str = "#333333";

#[cfg(test)]
mod tests {
    use super::*;

    fn near(value: f64, expected: f64) -> bool {
        (value - expected).abs() < 1e-6
    }

    #[test]
    fn the_linear_scale_ends_at_a_round_number() {
        for (most, end) in [(0.0, 0.0002), (0.9, 1.0), (31.0, 40.0), (50.0, 50.0), (147.0, 150.0)] {
            let scale = Linear::upto(most, 100.0);
            let last = scale.ticks().pop().unwrap().0;
            assert!(near(last, end), "{most}: {last}");
            assert!(near(scale.at(last), 100.0) && near(scale.at(last / 2.0), 100.0 / 2.0));
            assert!(near(scale.at(0.0), 0.0) && near(scale.at(-3.0), 0.0));
            assert!(scale.ticks().len() <= 7, "{most}");
        }
    }

    #[test]
    fn the_log_scale_goes_by_powers_of_ten() {
        let scale = Log::around([5.0, 131.0, 1_195.0].into_iter(), 100.0);
        let ticks: Vec<String> = scale.ticks().into_iter().map(|(_, shown)| shown).collect();
        assert_eq!(ticks, ["1 us", "10 us", "100 us", "1 ms", "10 ms"]);
        for (value, share) in [(1.0, 0.0), (10.0, 0.25), (100.0, 0.5), (1e4, 1.0), (1e7, 1.0)] {
            assert!(near(scale.at(value), share * 100.0), "{value}");
        }
        assert!(near(scale.at(0.0), 0.0));
        assert_eq!(Log::around([0.0].into_iter(), 100.0).ticks().len(), 2);
    }
}
