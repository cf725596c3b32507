#include "../adamw.cu"
#include "driver.h"

BIND(adamw_norm);
BIND(adamw_squares);
BIND(adamw_step);
