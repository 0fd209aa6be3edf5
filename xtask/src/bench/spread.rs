//! A value over the repeats of a run.

use std::fmt;

use serde::Serialize;

/// The median of the repeats, and how far they lie apart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Spread {
    /// Of some values; of none there is no median.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let upper = *values.get(middle)?;
        let lower = match values.len() % 2 {
            0 => *values.get(middle - 1)?,
            _ => upper,
        };
        let (min, max) = (*values.first()?, *values.last()?);
        Some(Self { median: (lower + upper) / 2.0, min, max })
    }

    /// How many times the other's median; none where that is no positive number.
    pub(super) fn ratio(&self, other: &Self) -> Option<f64> {
        (other.median > 0.0).then(|| self.median / other.median)
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { median, min, max } = *self;
        // Three digits are as much as a repeat confirms.
        let digits = match median.abs() {
            size if size >= 100.0 => 0,
            size if size >= 10.0 => 1,
            _ => 2,
        };
        write!(f, "{median:.digits$}")?;
        if min < max {
            write!(f, " ({min:.digits$}..{max:.digits$})")?;
        }
        Ok(())
    }
}

/// A ratio as a table shows it.
pub(super) fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"))
}

/// Prints a table in Markdown, aligned.
pub(super) fn table(rows: &[Vec<String>]) {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for (number, row) in rows.iter().enumerate() {
        for (cell, width) in row.iter().zip(&widths) {
            print!("| {cell:width$} ");
        }
        println!("|");
        if number == 0 {
            println!("{}|", "|---".repeat(columns));
        }
    }
    println!();
}

#[cfg(test)]
mod tests {
    use super::Spread;

    #[test]
    fn the_median_lies_between_the_middle_two() {
        for (values, median) in [
            (&[][..], None),
            (&[5.0], Some(5.0)),
            (&[9.0, 1.0], Some(5.0)),
            (&[9.0, 1.0, 2.0], Some(2.0)),
        ] {
            assert_eq!(Spread::of(values.to_vec()).map(|spread| spread.median), median);
        }
    }

    #[test]
    fn there_is_no_ratio_to_nothing_or_less() {
        let spread = |median| Spread { median, min: median, max: median };
        assert_eq!(spread(3.0).ratio(&spread(2.0)), Some(1.5));
        assert_eq!(spread(3.0).ratio(&spread(0.0)), None);
        assert_eq!(spread(3.0).ratio(&spread(-1.0)), None);
    }

    #[test]
    fn shows_as_many_digits_as_count() {
        let spread = Spread { median: 151.26, min: 148.9, max: 160.2 };
        assert_eq!(spread.to_string(), "151 (149..160)");
        assert_eq!(Spread { median: 0.5, min: 0.5, max: 0.5 }.to_string(), "0.50");
    }
}
