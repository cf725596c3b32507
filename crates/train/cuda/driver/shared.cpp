#include "../shared.cu"
#include "driver.h"

BIND(shared_ends);
BIND(shared_gradients);
BIND(shared_input_slopes);
BIND(shared_join);
BIND(shared_output_slopes);
BIND(shared_outputs);
BIND(shared_slopes);
BIND(shared_states);
