#include "../bank.cu"
#include "driver.h"

BIND(bank_gradients);
BIND(bank_outputs);
BIND(bank_slopes);
BIND(bank_table);
