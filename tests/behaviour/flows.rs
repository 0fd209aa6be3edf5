//! The kernel module's flows, without a gateway: what the programs do with single messages.

use gateway_user::config::KernelLog;
use gateway_user::kernel::{Flows, Path, trial};

#[test]
fn a_body_goes_each_way() {
    let (flows, works) = Flows::start(KernelLog::Off, &[], |_| true).unwrap();
    works.local.unwrap();
    works.splice.unwrap();
    for path in [Path::Local, Path::Splice] {
        trial(&flows, path).unwrap();
    }
}
