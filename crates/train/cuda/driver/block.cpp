#include "../block.cu"
#include "driver.h"

BIND(block_end);
BIND(block_end_slopes);
BIND(block_normalise);
BIND(block_normalise_slopes);
BIND(block_pool);
BIND(block_spread);
BIND(block_sums);
BIND(block_totals);
