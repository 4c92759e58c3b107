#include "base/vec.h"

#include <stdint.h>
#include <string.h>

#include "base/fault.h"

enum { CAP_MIN = 8 };

bool vec_grow(void **at, size_t *cap, size_t want, size_t size)
{
    size_t new_cap = *cap > 0 ? *cap : CAP_MIN, bytes;
    void *data;

    if (want <= *cap)
        return true;
    if (new_cap < want)
        new_cap = new_cap > SIZE_MAX / 2 || new_cap * 2 < want ? want : new_cap * 2;
    if (__builtin_mul_overflow(new_cap, size, &bytes) || fault_hit("mem"))
        return false;
    memcpy(&data, at, sizeof(data)); /* *at is a pointer of another type */
    data = realloc(data, bytes);
    if (data == NULL)
        return false;
    memcpy(at, &data, sizeof(data));
    *cap = new_cap;
    return true;
}
