/* What the program needs of a board. */
#ifndef BOARD_H
#define BOARD_H

#include <stdint.h>

/* Writes a text for whoever watches. */
void board_write(const char *text);

/* Ends the program; 0 is success. */
_Noreturn void board_exit(int code);

/* Instructions since the last call; a call at least every 2^29 instructions. 0 where nothing counts. */
uint32_t board_instructions(void);

/* Runs 2 * `rounds` instructions and a few more. */
void board_loop(uint32_t rounds);

/* The most bytes of stack that were in use. 0 where nobody knows. */
uint32_t board_stack(void);

#endif
