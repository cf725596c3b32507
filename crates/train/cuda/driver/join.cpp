#include "../join.cu"
#include "driver.h"

BIND(join_parts);
