/* select.h - the engine of a kind of device. */
#ifndef ENGINE_SELECT_H
#define ENGINE_SELECT_H

struct device;
struct engine_ops;

const struct engine_ops *engine_select(const struct device *d);

#endif
