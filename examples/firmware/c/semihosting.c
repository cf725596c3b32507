/* A board in an emulator or at a debugger: texts and the end go to the computer by semihosting. Start,
 * stack and the two functions that compilers call are here too, so that nothing else is linked.
 */
#include "board.h"

#include <stddef.h>

#define WRITE0 4
#define EXIT_EXTENDED 32
#define APPLICATION_EXIT 0x20026

/* Bytes below the top of the stack that are filled, to see later which were used. */
#define WATCHED 16384u
#define UNUSED 0xa5a5a5a5u

/* From the linker. */
extern uint32_t data_from[], data_start[], data_end[], bss_start[], bss_end[], stack_top[];

int main(void);

#ifdef __arm__
static long ask(long operation, const void *about) {
    register long r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = about;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

/* The clock of mps2 boards, 25 MHz; with qemu's `-icount shift=0` an instruction takes 1 ns. */
#define SYSTICK ((volatile uint32_t *)0xe000e010)
#define INSTRUCTIONS_OF_A_TICK 40u

uint32_t board_instructions(void) {
    static uint32_t last;
    uint32_t now = SYSTICK[2], past = (last - now) & 0xffffffu;
    last = now;
    return past * INSTRUCTIONS_OF_A_TICK;
}

static void prepare(void) {
    /* Floats are off after a reset. */
    *(volatile uint32_t *)0xe000ed88 |= 0xf00000u;
    __asm__ volatile("dsb\n\tisb");
    SYSTICK[1] = 0xffffffu;
    SYSTICK[2] = 0;
    SYSTICK[0] = 5;
}

void board_loop(uint32_t rounds) {
    __asm__ volatile("0: subs %0, #1\n\tbne 0b" : "+l"(rounds) : : "cc");
}

void start(void);
static void fault(void) { board_exit(2); }

/* The stack, the start, and what happens on NMI and faults. */
__attribute__((section(".vectors"), used)) static const void *const vectors[] = {
    stack_top, (const void *)start, (const void *)fault, (const void *)fault,
    (const void *)fault, (const void *)fault, (const void *)fault};
#else
static long ask(long operation, const void *about) {
    register long a0 __asm__("a0") = operation;
    register const void *a1 __asm__("a1") = about;
    __asm__ volatile(".balign 16\n\t.option push\n\t.option norvc\n\t"
                     "slli x0, x0, 0x1f\n\tebreak\n\tsrai x0, x0, 7\n\t.option pop"
                     : "+r"(a0) : "r"(a1) : "memory");
    return a0;
}

uint32_t board_instructions(void) {
    static uint32_t last;
    uint32_t now, past;
    __asm__ volatile("csrr %0, minstret" : "=r"(now));
    past = now - last;
    last = now;
    return past;
}

void board_loop(uint32_t rounds) {
    __asm__ volatile("0: addi %0, %0, -1\n\tbnez %0, 0b" : "+r"(rounds));
}

static void fault(void) { board_exit(2); }

static void prepare(void) {
    __asm__ volatile("csrw mtvec, %0" : : "r"((uint32_t)fault));
#ifdef __riscv_flen
    /* Floats are off after a reset. */
    __asm__ volatile("csrs mstatus, %0" : : "r"(0x6000));
#endif
}

__attribute__((naked, section(".vectors"), used)) static void enter(void) {
    __asm__ volatile("la sp, stack_top\n\tj start");
}
#endif

void board_write(const char *text) { ask(WRITE0, text); }

_Noreturn void board_exit(int code) {
    const long parameters[] = {APPLICATION_EXIT, code};
    for (;;) ask(EXIT_EXTENDED, parameters);
}

static uint32_t *watched(void) { return stack_top - WATCHED / sizeof(uint32_t); }

uint32_t board_stack(void) {
    const uint32_t *lowest = watched();
    while (lowest < stack_top && *lowest == UNUSED) lowest++;
    return (uint32_t)((const char *)stack_top - (const char *)lowest);
}

/* Sets up memory. */
__attribute__((used)) void start(void) {
    volatile uint32_t *to;
    const uint32_t *from = data_from;
    for (to = data_start; to < data_end; to++) *to = *from++;
    for (to = bss_start; to < bss_end; to++) *to = 0;
    /* What lies below this function's own frame. */
    for (to = watched(); to < (uint32_t *)__builtin_frame_address(0) - 32; to++) *to = UNUSED;
    prepare();
    board_exit(main());
}

/* Neither may become a call of itself. */
__attribute__((optimize("no-tree-loop-distribute-patterns"))) void *memcpy(void *to, const void *from, size_t bytes) {
    unsigned char *at = to;
    const unsigned char *source = from;
    while (bytes-- > 0) *at++ = *source++;
    return to;
}

__attribute__((optimize("no-tree-loop-distribute-patterns"))) void *memset(void *to, int byte, size_t bytes) {
    unsigned char *at = to;
    while (bytes-- > 0) *at++ = (unsigned char)byte;
    return to;
}
