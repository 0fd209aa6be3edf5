#!/bin/busybox sh
# The first and only script of a guest of `cargo xtask vm`: runs the probe and the tests, and says
# on the console what came of them. What stands behind a line `@@ NAME` up to the next such line is
# the part NAME of the report; xtask/src/vm/report.rs reads it.

/bin/busybox mkdir -p /proc /sys /dev /tmp
/bin/busybox mount -t proc proc /proc
read -r up _ < /proc/uptime
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox mount -t devtmpfs devtmpfs /dev 2>/dev/null
/bin/busybox --install -s /bin
# The host's own programs first, for the tests; this shell itself prefers busybox's.
export PATH=/sluice:/host:/bin
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
mount -t tmpfs tmpfs /tmp
for module in /modules/*.ko.xz; do
    [ -e "$module" ] && unxz "$module"
done
for module in /modules/*.ko; do
    [ -e "$module" ] && insmod "$module"
done
/host/ip link set lo up

failed=0
part() { echo "@@ $1"; }

part kernel; uname -r
part up; echo "$up"
part table; sluice probe || failed=1
part probe; sluice probe --json || failed=1
part programs; sluice probe --programs --json || failed=1
# As the daemon runs in a cluster; without CAP_PERFMON the verifier is stricter. Before 5.11 maps
# count against the limit, which only a right that is not among the two may raise.
part programs-capped
(
    ulimit -l unlimited
    RUST_LOG=off /host/setpriv --bounding-set=-all,+bpf,+net_admin --inh-caps=-all \
        sluice probe --programs --json
) || failed=1
part tests
SLUICE_TEST_PRIVILEGED_LOG=/tmp/privileged SLUICE_TEST_KERNEL_BYTES=/tmp/kernel-bytes RUST_BACKTRACE=1 \
    /sluice/deps/behaviour $(cat /sluice/words) 2>&1 || failed=1
part privileged; cat /tmp/privileged
part bytes; [ ! -e /tmp/kernel-bytes ] || cat /tmp/kernel-bytes
part kernel-log; dmesg | grep -E 'WARNING: |BUG: |Oops: '
part end; read -r up _ < /proc/uptime; echo "$up"
sync
vm-exit $((16 + failed))
# Only where that did not work; xtask takes it for a failure.
poweroff -f
