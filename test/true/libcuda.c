/* libcuda.c - stands in for NVIDIA's driver where there is none, as far as cuDNN needs one to make a plan for
 * a GPU that is not here: kernels that it compiles are taken and never run. There is no device. */
#include <stddef.h>

/* Results are CUresult: 0 is success, 100 "no device". Parameters behind those used are left out: the
 * caller passes them, nobody looks. */
#define DOES_NOTHING(name_)                                                                            \
    int name_(void);                                                                                   \
    int name_(void)                                                                                    \
    {                                                                                                  \
        return 0;                                                                                      \
    }
/* Something that is not NULL, for handles. */
#define GIVES_A_HANDLE(name_)                                                                          \
    int name_(void **out);                                                                             \
    int name_(void **out)                                                                              \
    {                                                                                                  \
        static char something;                                                                         \
                                                                                                       \
        *out = &something;                                                                             \
        return 0;                                                                                      \
    }
#define GIVES(name_, type_, value_)                                                                    \
    int name_(type_ *out);                                                                             \
    int name_(type_ *out)                                                                              \
    {                                                                                                  \
        *out = value_;                                                                                 \
        return 0;                                                                                      \
    }

int cuInit(unsigned int flags);
int cuInit(unsigned int flags)
{
    (void)flags;
    return 100;
}

int cuGetErrorString(int error, const char **out);
int cuGetErrorString(int error, const char **out)
{
    (void)error;
    *out = "no driver";
    return 0;
}

int cuGetErrorName(int error, const char **out);
int cuGetErrorName(int error, const char **out)
{
    return cuGetErrorString(error, out);
}

GIVES(cuDriverGetVersion, int, 13000)
GIVES(cuDeviceGetCount, int, 0)
GIVES(cuDeviceGet, int, 0)
GIVES(cuCtxGetLimit, size_t, 1024)
GIVES(cuKernelGetAttribute, int, 0)
GIVES(cuFuncGetAttribute, int, 0)
GIVES(cuOccupancyMaxPotentialClusterSize, int, 8)
GIVES(cuOccupancyMaxActiveBlocksPerMultiprocessor, int, 1)
GIVES_A_HANDLE(cuCtxGetCurrent)
GIVES_A_HANDLE(cuStreamGetCtx)
GIVES_A_HANDLE(cuLibraryLoadData)
GIVES_A_HANDLE(cuLibraryLoadFromFile)
GIVES_A_HANDLE(cuLibraryGetKernel)
GIVES_A_HANDLE(cuLibraryGetModule)
GIVES_A_HANDLE(cuKernelGetFunction)
GIVES_A_HANDLE(cuModuleLoadData)
GIVES_A_HANDLE(cuModuleLoadDataEx)
GIVES_A_HANDLE(cuModuleGetFunction)
DOES_NOTHING(cuCtxPushCurrent)
DOES_NOTHING(cuCtxPopCurrent)
DOES_NOTHING(cuFuncSetAttribute)
DOES_NOTHING(cuKernelSetAttribute)
DOES_NOTHING(cuLaunchCooperativeKernel)
DOES_NOTHING(cuLaunchKernel)
DOES_NOTHING(cuLaunchKernelEx)
DOES_NOTHING(cuLibraryUnload)
DOES_NOTHING(cuLinkAddData)
DOES_NOTHING(cuLinkComplete)
DOES_NOTHING(cuLinkCreate)
DOES_NOTHING(cuLinkDestroy)
DOES_NOTHING(cuModuleUnload)
