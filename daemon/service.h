/* service.h - what systemd wants to know (sd_notify); nothing happens without NOTIFY_SOCKET.
 *
 * The unit is of Type=notify: READY when training begins, a sentence as STATUS whenever it changes, WATCHDOG
 * while the loop and training answer, EXTEND_TIMEOUT_USEC while starting or stopping takes long and is under
 * way, RELOADING and READY around a SIGHUP (as Type=notify-reload wants it too), STOPPING. The loop's thread. */
#ifndef DAEMON_SERVICE_H
#define DAEMON_SERVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rdzv_progress;

void service_ready(void); /* the first time counts */
void service_reloading(void);
void service_reloaded(void);
void service_stopping(void);
/* A sentence; what has not changed is not sent again, and changes at most once a second. */
void service_status(const char *text);
/* The last words, sent at once. */
void service_end(int exit_code, const char *text);
/* From the loop, so that a stuck loop is noticed. training_ok: nobody believes that training is stuck;
 * false: no WATCHDOG, and with time the service manager ends the process. Is also what keeps a start or stop
 * that takes long alive. Several times a second; it sends what is due. */
void service_alive(bool training_ok);

/* "train: step 120 of 440 (27 %), loss 0.31, generation 2, 3 of 4 tasks present; last trouble: ..." Pure.
 * generation 0: not in a group yet; world 1: alone, nothing about tasks. */
void service_sentence(const struct rdzv_progress *p, uint64_t generation, uint32_t present, uint32_t world,
                      uint64_t now_ms, char *out, size_t n);

#endif
