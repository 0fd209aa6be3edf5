//! What pages say of the code, and the code does not say by itself.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

// A name may hold several numbers: `field_report_25_30_picker_report_1_...`.
#[test]
fn every_report_is_a_test_or_has_a_reason() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut sources = Vec::new();
    for folder in ["gateway-common", "gateway-user/src", "tests"] {
        collect(&root.join(folder), &mut sources);
    }
    let page = std::fs::read_to_string(root.join("docs/reliability.md")).unwrap();
    for (kind, of) in [("field", &FIELD[..]), ("picker", &PICKER[..])] {
        let tested = tested(kind, &sources);
        let unknown: Vec<_> = tested.iter().filter(|number| !of.contains(number)).collect();
        assert!(unknown.is_empty(), "tests name {kind} reports that there are not: {unknown:?}");
        let listed = |number: &u32| page.contains(&format!("| {kind} report {number} |"));
        let missing: Vec<_> =
            of.iter().filter(|number| !tested.contains(number) && !listed(number)).collect();
        assert!(
            missing.is_empty(),
            "neither tested nor in docs/reliability.md: {kind} reports {missing:?}"
        );
        assert!(
            tested.len() > of.len() / 2,
            "only {} {kind} reports are found in tests",
            tested.len()
        );
    }
}

// In the daemon the compiler sees to it: all is denied but in the one module that allows it.
#[test]
fn unsafe_code_is_where_the_architecture_page_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let library = std::fs::read_to_string(root.join("gateway-user/src/lib.rs")).unwrap();
    assert!(library.contains("#![deny(unsafe_code)]"));
    let mut sources = Vec::new();
    collect(&root.join("gateway-user/src"), &mut sources);
    let allowing: Vec<_> = sources
        .iter()
        .filter(|path| std::fs::read_to_string(path).unwrap().contains("(unsafe_code"))
        .collect();
    assert_eq!(allowing, [&root.join("gateway-user/src/lib.rs")]);
    assert_eq!(library.matches("allow(unsafe_code").count(), 1);
    assert_eq!(
        library.split("allow(unsafe_code").nth(1).unwrap().lines().nth(1),
        Some("pub mod kernel;")
    );
    // What both worlds share says which of its values are plain bytes, and reads and writes one that the kernel
    // programs change meanwhile.
    sources.clear();
    collect(&root.join("gateway-common/src"), &mut sources);
    for source in sources.iter().filter(|source| !source.ends_with("gateway-common/src/flow.rs")) {
        let text = std::fs::read_to_string(source).unwrap();
        let odd = text.lines().map(str::trim_start).find(|line| {
            line.contains("unsafe ")
                && !line.starts_with("//")
                && !line.starts_with("unsafe impl aya::Pod for ")
        });
        assert_eq!(odd, None, "{}", source.display());
    }
}

/// The numbers that names of tests hold.
fn tested(kind: &str, sources: &[PathBuf]) -> BTreeSet<u32> {
    let mark = format!("{kind}_report");
    let mut found = BTreeSet::new();
    for source in sources {
        let text = std::fs::read_to_string(source).unwrap();
        let names = text
            .lines()
            .filter_map(|line| line.trim_start().strip_prefix("fn ")?.split('(').next());
        for (_, behind) in names.filter_map(|name| name.split_once(mark.as_str())) {
            let numbers = behind.split('_').skip(1).map_while(|word| word.parse::<u32>().ok());
            found.extend(numbers);
        }
    }
    found
}

fn collect(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.ends_with("target") {
            collect(&path, into);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            into.push(path);
        }
    }
}

/// What users reported of other gateways and of routers.
const FIELD: [u32; 70] = [
    1, 2, 4, 5, 6, 7, 9, 11, 12, 13, 14, 16, 17, 18, 19, 20, 21, 22, 23, 25, 26, 27, 28, 29, 30,
    31, 32, 33, 34, 35, 36, 37, 38, 40, 41, 42, 43, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57,
    58, 59, 60, 61, 62, 64, 65, 67, 68, 69, 71, 72, 73, 74, 75, 76, 77, 79, 80, 82, 83,
];

/// The same of the reference endpoint picker.
const PICKER: [u32; 25] =
    [1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 14, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 30];
