//! What the program needs of a board: text, the end, and a counter of instructions.

use core::panic::PanicInfo;

#[cfg(target_arch = "arm")]
pub(crate) use cortex_m_rt::entry;
#[cfg(target_arch = "riscv32")]
pub(crate) use riscv_rt::entry;
use semihosting::process;
use semihosting::sys::arm_compat::sys_writec;

/// Writes a text for whoever watches.
pub(crate) fn write(text: &str) {
    text.bytes().for_each(sys_writec);
}

/// Ends the program; 0 is success.
pub(crate) fn exit(code: i32) -> ! {
    process::exit(code)
}

/// Without a message: formatting it would be half of the firmware.
#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    exit(2)
}

/// Counts instructions, where the emulator takes 1 ns for each (`-icount shift=0`).
pub(crate) struct Counter {
    last: u32,
    #[cfg(target_arch = "arm")]
    clock: cortex_m::peripheral::SYST,
}

#[cfg(target_arch = "arm")]
impl Counter {
    /// The clock of mps2 boards has 25 MHz.
    const INSTRUCTIONS_OF_A_TICK: u32 = 40;
    const TICKS: u32 = 0xff_ffff;

    /// Starts it; a second one does not.
    pub(crate) fn new() -> Option<Self> {
        let mut clock = cortex_m::Peripherals::take()?.SYST;
        clock.set_clock_source(cortex_m::peripheral::syst::SystClkSource::Core);
        clock.set_reload(Self::TICKS);
        clock.clear_current();
        clock.enable_counter();
        Some(Self { last: 0, clock })
    }

    /// Instructions since the last call; one at least every 2^29 instructions.
    pub(crate) fn past(&mut self) -> u32 {
        let _ = &self.clock;
        let now = cortex_m::peripheral::SYST::get_current();
        let past = self.last.wrapping_sub(now) & Self::TICKS;
        self.last = now;
        past * Self::INSTRUCTIONS_OF_A_TICK
    }
}

#[cfg(target_arch = "riscv32")]
impl Counter {
    /// It runs from the start.
    pub(crate) fn new() -> Option<Self> {
        Some(Self { last: 0 })
    }

    /// Instructions since the last call.
    pub(crate) fn past(&mut self) -> u32 {
        let now = riscv::register::minstret::read() as u32;
        let past = now.wrapping_sub(self.last);
        self.last = now;
        past
    }
}

/// Runs 2 · `rounds` instructions and a few more.
pub(crate) fn spin(rounds: u32) {
    // SAFETY: counts a register down and touches nothing else.
    #[cfg(target_arch = "arm")]
    unsafe {
        core::arch::asm!("0: subs {0}, #1", "bne 0b", inout(reg) rounds => _);
    }
    // SAFETY: as above.
    #[cfg(target_arch = "riscv32")]
    unsafe {
        core::arch::asm!("0: addi {0}, {0}, -1", "bnez {0}, 0b", inout(reg) rounds => _);
    }
}
