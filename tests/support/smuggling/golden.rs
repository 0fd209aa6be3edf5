//! What the readers said, as a file: a line for each case, and below it one for all readers that agree, or
//! one for each.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{Case, Reading};

/// What each of the three readers found, by the case's name.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Golden {
    /// Names and versions.
    pub readers: [String; 3],
    /// The readings.
    pub cases: BTreeMap<String, [Reading; 3]>,
}

impl Golden {
    /// From the readings of each reader.
    pub fn new(readers: [String; 3], cases: &[Case], readings: [Vec<Reading>; 3]) -> Self {
        let [hyper, nginx, haproxy] = readings;
        let all = hyper.into_iter().zip(nginx).zip(haproxy);
        let all = all.map(|((hyper, nginx), haproxy)| [hyper, nginx, haproxy]);
        Self { readers, cases: cases.iter().map(|case| case.name.clone()).zip(all).collect() }
    }

    /// The file.
    pub fn text(&self) -> String {
        let [hyper, nginx, haproxy] = &self.readers;
        let mut text = format!("{hyper} | {nginx} | {haproxy}\n");
        for (name, readings) in &self.cases {
            let _ = writeln!(text, "{name}");
            let [first, others @ ..] = readings;
            if others.iter().all(|other| other == first) {
                let _ = writeln!(text, "  all: {}", line(first));
                continue;
            }
            for (reader, reading) in self.readers.iter().zip(readings) {
                let reader = reader.split(' ').next().unwrap_or_default();
                let _ = writeln!(text, "  {reader}: {}", line(reading));
            }
        }
        text
    }

    /// Reads the file.
    ///
    /// # Panics
    /// It is not one that [`Golden::text`] wrote.
    pub fn parse(text: &str) -> Self {
        let mut lines = text.lines().peekable();
        let mut readers = lines.next().expect("a first line").split(" | ").map(str::to_owned);
        let mut next = || readers.next().expect("three readers");
        let mut golden = Self { readers: [next(), next(), next()], cases: BTreeMap::new() };
        while let Some(name) = lines.next() {
            let mut readings = Vec::new();
            while let Some(said) = lines.next_if(|line| line.starts_with("  ")) {
                let (reader, said) = said.trim_start().split_once(": ").expect("a reader");
                let count = if reader == "all" { 3 } else { 1 };
                readings.extend(vec![reading(said); count]);
            }
            let readings = readings.try_into().expect("three readings");
            golden.cases.insert(name.to_owned(), readings);
        }
        golden
    }
}

/// Requests and what the client was told.
fn line(reading: &Reading) -> String {
    let statuses: Vec<String> = reading.statuses.iter().map(u16::to_string).collect();
    let requests = reading.requests.iter().map(|request| format!(" | {request}"));
    format!("{}{}", statuses.join(" "), requests.collect::<String>())
}

fn reading(line: &str) -> Reading {
    let mut parts = line.split(" | ");
    let statuses = parts.next().unwrap_or_default().split_whitespace();
    let statuses = statuses.map(|text| text.parse().expect("a status")).collect();
    Reading { requests: parts.map(str::to_owned).collect(), statuses }
}
