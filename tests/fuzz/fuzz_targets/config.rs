//! Configurations: no panic, and what is taken is printed as something that is taken and means the same.
#![no_main]

use gateway_user::config::parse;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(loaded) = parse(text, "fuzz") else { return };
    let printed = loaded.config.to_yaml();
    match parse(&printed, "printed") {
        Ok(again) => assert_eq!(again.config, loaded.config, "{printed}"),
        Err(errors) => panic!("{errors}\n{printed}"),
    }
});
