/* For trying the Windows program under Wine before version 9, which lacks this library of Windows; Rust's
   standard library takes its random numbers from it. No archive holds it. */
#include <windows.h>

BOOLEAN NTAPI SystemFunction036(PVOID data, ULONG size);

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T size) {
    return SystemFunction036(data, (ULONG)size);
}
