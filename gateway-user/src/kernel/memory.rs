//! Has the memory of large bodies go back to the kernel.

/// Has blocks of 1 MiB and more come from the kernel and go back to it, each by itself, for as long as the process runs.
///
/// The C library does so at first, and stops with the first such block that is freed: it takes its size, up to 32 MiB,
/// for one that comes often. From then on bodies lie among all else, are copied whenever they grow, and leave
/// holes behind: bodies of 20 MB were seen to take 1.5 times their size, which was not given back. Other C
/// libraries than glibc do not learn this.
pub fn give_back_large_blocks() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it sets a number, behind the allocator's own lock.
    unsafe {
        // 0 means that it was refused; then all is as it was.
        let _ = libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
    }
}

/// Smaller ones come and go with each request, and a call of the kernel for each would cost more than it saves.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 1 << 20;
