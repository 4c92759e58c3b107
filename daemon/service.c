#include "daemon/service.h"

#include <stdbool.h>
#include <systemd/sd-daemon.h>

/* Failures of sd_notify are not ours to handle: a supervisor that does not listen loses only news. */
void service_ready(void)
{
    static bool told;

    if (!told)
        (void)sd_notify(0, "READY=1");
    told = true;
}

void service_status(const char *text)
{
    (void)sd_notifyf(0, "STATUS=%s", text);
}

void service_stopping(void)
{
    (void)sd_notify(0, "STOPPING=1");
}

void service_alive(void)
{
    (void)sd_notify(0, "WATCHDOG=1");
}
