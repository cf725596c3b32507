#include "../modes.cu"
#include "driver.h"

BIND(modes_gradients);
BIND(modes_values);
