#include "../rounding.cu"
#include "driver.h"

BIND(rounding_slopes);
BIND(rounding_values);
