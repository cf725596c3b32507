/* What the program needs of a board. */
#ifndef BOARD_H
#define BOARD_H

#include <stdint.h>

/* Writes a text for whoever watches. */
void board_write(const char *text);

/* Writes a blank and the eight hexadecimal digits of a number. */
static inline void board_write_number(uint32_t number) {
    char text[] = " 00000000";
    int digit;
    for (digit = 8; digit > 0; digit--, number >>= 4) text[digit] = "0123456789abcdef"[number & 15];
    board_write(text);
}

/* Ends the program; 0 is success. */
_Noreturn void board_exit(int code);

/* Instructions since the last call; a call at least every 2^29 instructions. 0 where nothing counts. */
uint32_t board_instructions(void);

/* Runs 2 * `rounds` instructions and a few more. */
void board_loop(uint32_t rounds);

/* The most bytes of stack that were in use. 0 where nobody knows. */
uint32_t board_stack(void);

#endif
