#include "base/errno_text.h"

#include <string.h>

const char *errno_text(int errnum)
{
    static _Thread_local char text[128];

    return strerror_r(errnum, text, sizeof(text)); /* the GNU version, which returns the text */
}
