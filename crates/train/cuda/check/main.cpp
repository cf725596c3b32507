// Runs every kernel on the processor against plain formulas in double precision.
#include "check.h"

int main(int count, char **arguments) {
    emulate::without_barriers = count > 1 && std::string(arguments[1]) == "--without-barriers";
    check_bank();
    check_block();
    check_modes();
    check_adamw();
    check_join();
    check_rounding();
    check_shared();
    std::printf("%d comparisons, %d failed\n", check::comparisons, check::failures);
    return check::failures > 0;
}
