/* plugin.c - loads trainerd-cuda.so, and waits for GPU work. */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/process.h"
#include "device/cuda.h"
#include "device/device.h"

#define PLUGIN "trainerd-cuda.so"

static struct {
    pthread_mutex_t lock;
    const struct cuda_api *api; /* NULL: not loaded */
} plugin = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Writes the path of the plugin of this program: beside the executable, as in the build folder, or
 * in ../lib/trainerd of its folder, as after the installation. Returns false if neither exists. */
static bool find_plugin(char *out, size_t n)
{
    static const char *const places[] = { PLUGIN, "../lib/trainerd/" PLUGIN };
    char folder[PATH_MAX];

    if (!process_folder(folder, sizeof(folder)))
        return false;
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        snprintf(out, n, "%s/%s", folder, places[i]);
        if (access(out, F_OK) == 0)
            return true;
    }
    return false;
}

/* Loads the plugin. *found: whether the file exists. */
static void *load_plugin(bool *found, char *why, size_t n)
{
    char path[PATH_MAX + 64];
    void *handle;

    *found = find_plugin(path, sizeof(path));
    /* If it exists, it must be used; the library path is not searched. */
    handle = dlopen(*found ? path : PLUGIN, RTLD_NOW | RTLD_LOCAL);
    if (handle != NULL)
        *found = true;
    else
        snprintf(why, n, "%s", dlerror());
    /* On the library path, a missing file is reported with this message, and an unusable one with
     * another message. */
    if (handle == NULL && !*found)
        *found = strstr(why, PLUGIN ": cannot open shared object file: No such file") == NULL;
    return handle;
}

/* Reports a plugin that cannot be used. The caller must not fall back to CPUs: a plugin is
 * installed to be used. */
static int plugin_error(const struct cuda_api *api, struct err *err)
{
    const char *version = api != NULL && api->abi == CUDA_ABI ? api->version : NULL;

    if (api == NULL)
        return err_set(err, ERR_DEVICE, "the %s found lacks the symbol %s (not a plugin of trainerd "
                                        TRAINERD_VERSION "): install the plugin and the program of one "
                                        "version, or use 'cpu'", PLUGIN, CUDA_SYMBOL);
    return err_set(err, ERR_DEVICE, "the %s found is of %s %s, the program is %s: install the plugin and "
                                    "the program of one version, or use 'cpu'", PLUGIN,
                   version != NULL ? "version" : "another", version != NULL ? version : "interface",
                   TRAINERD_VERSION);
}

static int open_plugin(const struct cuda_api **out, struct err *err)
{
    char why[512];
    bool found;
    void *handle = load_plugin(&found, why, sizeof(why));
    const struct cuda_api *api;

    if (handle == NULL)
        return err_set(err, found ? ERR_DEVICE : ERR_NOENT,
                       "trainerd " TRAINERD_VERSION " runs on CUDA only through its plugin " PLUGIN
                       ", which cannot be loaded (%s): put it beside the program, into ../lib/trainerd of "
                       "that folder or on the library path, or use 'cpu'", why);
    api = dlsym(handle, CUDA_SYMBOL);
    if (api == NULL || api->abi != CUDA_ABI || strcmp(api->version, TRAINERD_VERSION) != 0) {
        int rc = plugin_error(api, err);

        dlclose(handle);
        return rc;
    }
    *out = api;
    return 0;
}

int device_plugin(const struct cuda_api **out, struct err *err)
{
    int rc = 0;

    pthread_mutex_lock(&plugin.lock);
    if (plugin.api == NULL)
        rc = open_plugin(&plugin.api, err);
    if (rc == 0)
        *out = plugin.api;
    pthread_mutex_unlock(&plugin.lock);
    return rc;
}

bool device_has_driver(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);

    if (driver != NULL)
        dlclose(driver);
    return driver != NULL;
}

const struct cuda_api *device_cuda(const struct device *d)
{
    if (d->kind != DEVICE_CUDA)
        return NULL;
    CHECK(plugin.api != NULL); /* device_parse() has loaded it */
    return plugin.api;
}

/* Polls the GPU. A step takes a millisecond or more, the work between steps some microseconds: spin
 * at first, then sleep for a fraction of the time waited so far. */
enum { EAGER_NS = 50000, NAP_MAX_NS = 200000 };

int device_watch(const struct cuda_api *cuda, struct cuda_stream *s, struct cuda_event *e,
                 int (*look)(void *arg, struct err *err), void *arg, struct err *err)
{
    uint64_t begin = clock_ns();

    for (;;) {
        int rc = cuda->done(s, e, err);
        uint64_t waited;

        if (rc != 0)
            return rc < 0 ? rc : 0;
        rc = look(arg, err);
        if (rc < 0)
            return rc;
        waited = clock_ns() - begin;
        if (waited > EAGER_NS) {
            struct timespec nap = { .tv_nsec = (long)(waited / 16 < NAP_MAX_NS ? waited / 16 : NAP_MAX_NS) };

            nanosleep(&nap, NULL);
        }
    }
}

static int check_cancel(void *arg, struct err *err)
{
    const struct cancel *const *cancel = arg;

    if (!cancel_requested(*cancel))
        return 0;
    return err_set(err, ERR_CANCELED, "canceled");
}

int device_wait(const struct cuda_api *cuda, struct cuda_stream *s, struct cuda_event *e,
                const struct cancel *cancel, struct err *err)
{
    return device_watch(cuda, s, e, check_cancel, &cancel, err);
}
