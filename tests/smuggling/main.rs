//! `smuggling`: asks hyper, nginx and HAProxy how they read the messages of the smuggling tests, and compares
//! that with what is recorded, or records it.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use sluice_tests::smuggling::golden::Golden;
use sluice_tests::smuggling::reader::Reader;
use sluice_tests::smuggling::{corpus, read_all};

/// How hyper, nginx and HAProxy read the messages of the smuggling tests.
#[derive(Parser)]
#[command(
    name = "smuggling",
    after_help = "Example: smuggling --record tests/golden/smuggling/readings.txt"
)]
struct Cli {
    /// The file to compare with.
    file: PathBuf,
    /// Write it instead.
    #[arg(long)]
    record: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    let cli = Cli::parse();
    let cases = corpus();
    let readers = Reader::start_all()?;
    let names = readers.each_ref().map(|reader| reader.name.clone());
    let readings = readers.each_ref().map(|reader| {
        let whole = |message: &[u8]| vec![message.to_vec()];
        read_all(&cases, reader.address, whole, || reader.requests())
    });
    for reader in &readers {
        for fault in reader.faults() {
            println!("{} sent its pod: {fault}", reader.name);
        }
    }
    let golden = Golden::new(names, &cases, readings);
    if cli.record {
        std::fs::write(&cli.file, golden.text())?;
        println!("{} messages recorded", golden.cases.len());
        return Ok(ExitCode::SUCCESS);
    }
    let file =
        std::fs::read_to_string(&cli.file).with_context(|| cli.file.display().to_string())?;
    let recorded = Golden::parse(&file);
    println!("recorded of {}; asked: {}", recorded.readers.join(", "), golden.readers.join(", "));
    let mut differ = 0;
    for (name, readings) in &golden.cases {
        let before = recorded.cases.get(name);
        if before != Some(readings) {
            println!("{name}\n  recorded: {before:?}\n  now: {readings:?}");
            differ += 1;
        }
    }
    println!("{} messages, {differ} read in another way than recorded", golden.cases.len());
    Ok(if differ == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
