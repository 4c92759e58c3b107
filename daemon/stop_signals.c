#include "daemon/stop_signals.h"

#include <string.h>

#include "base/check.h"
#include "base/err.h"

static const int signals[] = { SIGTERM, SIGINT, SIGXCPU, SIGUSR1, SIGUSR2 };
static const char *const names[] = { "SIGTERM", "SIGINT", "SIGXCPU", "SIGUSR1", "SIGUSR2" };
static size_t n_signals = COUNT_OF(signals);

static bool is_of_user(int signum)
{
    return signum == SIGUSR1 || signum == SIGUSR2;
}

int stop_signals_select(const char *word, struct err *err)
{
    if (word == NULL || strcmp(word, "stop") == 0)
        return 0;
    if (strcmp(word, "ignore") != 0)
        return err_set(err, ERR_INPUT, "--usr-signals: expected stop or ignore, found '%.80s'",
                       word);
    while (n_signals > 0 && is_of_user(signals[n_signals - 1]))
        signal(signals[--n_signals], SIG_IGN);
    return 0;
}

const int *stop_signals(size_t *n)
{
    *n = n_signals;
    return signals;
}

void stop_signals_handle(void (*handler)(int signum))
{
    for (size_t i = 0; i < n_signals; i++)
        signal(signals[i], handler);
}

void stop_signals_add(sigset_t *set)
{
    for (size_t i = 0; i < n_signals; i++)
        sigaddset(set, signals[i]);
}

bool stop_signals_are_pending(void)
{
    sigset_t waiting;

    if (sigpending(&waiting) != 0)
        return false;
    for (size_t i = 0; i < n_signals; i++)
        if (sigismember(&waiting, signals[i]) == 1)
            return true;
    return false;
}

const char *stop_signal_name(int signum)
{
    size_t i = 0;

    while (i < COUNT_OF(signals) && signals[i] != signum)
        i++;
    CHECK(i < COUNT_OF(signals));
    return names[i];
}

bool stop_signal_announces(int signum)
{
    return is_of_user(signum) || signum == SIGXCPU; /* the kernel repeats SIGXCPU every second */
}
