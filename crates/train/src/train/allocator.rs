//! Memory that a training step frees is kept for the next one.

/// Asks the C library to keep freed memory for the process, up to a quarter of a GiB at a time, and
/// not to hand pieces below 32 MiB back to the system one by one.
///
/// A training step takes and frees hundreds of megabyte-sized tensors; glibc maps and unmaps each of
/// them, and up to 45 % of a recurrent network's step was spent in the system for it. To be called
/// once by a program that trains, before it does. Does nothing on other systems.
pub fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        /// The largest threshold that every version of glibc accepts on 64 bits.
        const MAPPED_FROM: libc::c_int = 32 << 20;
        const KEPT: libc::c_int = 256 << 20;
        #[allow(unsafe_code, reason = "a call of C that only sets two numbers")]
        // SAFETY: mallopt takes plain integers, locks the allocator itself and may be called at any
        // time; what it does not accept it leaves as it was.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM);
            libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT);
        }
    }
}
