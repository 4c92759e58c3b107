#include "daemon/ctl.h"

#include "base/err.h"

int ctl_exit_code(int code)
{
    switch (code) {
    case 0:
        return CTL_OK;
    case ERR_INPUT:
    case ERR_NOENT:
        return CTL_USAGE;
    case ERR_UNSUPPORTED:
        return CTL_UNSUPPORTED;
    default:
        return CTL_FAILED;
    }
}
