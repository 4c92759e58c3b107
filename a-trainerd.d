trainerd.o: daemon/trainerd.c lib/base/buf.h lib/base/cancel.h \
 lib/base/check.h lib/base/err.h lib/base/log.h lib/base/log_sink.h \
 lib/conf/job_schema.h daemon/args.h daemon/complete.h daemon/restart.h \
 daemon/run.h daemon/service.h daemon/settle.h lib/conf/cluster.h \
 lib/conf/cluster_types.h lib/base/arena.h lib/conf/job.h \
 lib/conf/job_types.h lib/device/device.h lib/train/train.h \
 lib/train/train_types.h lib/comm/comm.h lib/tensor/tensor.h \
 lib/data/data.h lib/graph/graph.h lib/optim/optim.h \
 lib/train/loss_scale.h lib/op/op.h
lib/base/buf.h:
lib/base/cancel.h:
lib/base/check.h:
lib/base/err.h:
lib/base/log.h:
lib/base/log_sink.h:
lib/conf/job_schema.h:
daemon/args.h:
daemon/complete.h:
daemon/restart.h:
daemon/run.h:
daemon/service.h:
daemon/settle.h:
lib/conf/cluster.h:
lib/conf/cluster_types.h:
lib/base/arena.h:
lib/conf/job.h:
lib/conf/job_types.h:
lib/device/device.h:
lib/train/train.h:
lib/train/train_types.h:
lib/comm/comm.h:
lib/tensor/tensor.h:
lib/data/data.h:
lib/graph/graph.h:
lib/optim/optim.h:
lib/train/loss_scale.h:
lib/op/op.h:
