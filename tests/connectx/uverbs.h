/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The software NIC behind the uverbs ABI: the calls by which libibverbs and libmlx5 reach a kernel
 * are answered inside the process, and dv/soft executes their queues, which lie in the program's
 * own memory.
 *
 *   interpose.c  open, opendir, stat, ioctl, mmap, close, socket: takes the calls for its devices
 *   sysfs.c      the tree in which libibverbs finds devices
 *   dispatch.c   one ioctl -> one command
 *   context.c    contexts, device and port attributes, PDs     uar.c    doorbell pages
 *   memory.c shared.c  MRs    cq.c    qp.c    state.c          event.c  channels, async events
 *   share.c      command descriptors in other processes
 *   device.c     the NIC of a port, its thread; the hooks of dv/soft
 *   decode.c move.c odd.c                                          how the hooks execute WQEs
 *   message.c                                                  what tests send to a port
 *
 * Threads: the program's threads, in their system calls; one thread per NIC, and one per context
 * for the commands of other processes. nic->lock guards the
 * state of a NIC, uv_lock that of the process (contexts, file descriptors). uv_lock is taken first.
 */
#ifndef DV_SOFT_UVERBS_H
#define DV_SOFT_UVERBS_H

#include <sys/sysmacros.h>

#include <infiniband/mlx5dv.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <rdma/mlx5-abi.h>

#include "dv/soft/soft.h"

#define UV_DEVICES_MAX 16u
/* number of the device's node, as in sysfs */
#define UV_RDEV(index) makedev(231, 192u + (unsigned)(index))
/* GIDs of a port: link-local and IPv4-mapped, each as RoCE v1 and v2; with a VLAN as many more */
#define UV_GIDS 4u
#define UV_GIDS_MAX 8u
#define UV_UARS_MAX 256u /* doorbell pages of one context, at most */
#define UV_SQ_DEPTH_MAX 32768u
#define UV_RQ_DEPTH_MAX 32768u
#define UV_MR_BYTES_MAX (1ull << 40)
/* READs in one batch, at most: as many as a QP may have in flight */
#define UV_BATCH_READS SOFT_READS_MAX
#define UV_BATCH_PIECES 64u
#define UV_BATCH_BYTES (1ull << 20)
static_assert(UV_BATCH_PIECES >= SOFT_SGES_MAX, "any single READ fits a batch");

/*
 * READs of one QP that one system call moves. Empty except while that QP is stepped, under
 * nic->lock.
 */
struct uv_batch {
	unsigned reads, locals, fars;
	uint64_t bytes;
	struct soft_op *op[UV_BATCH_READS];
	struct iovec far[UV_BATCH_READS]; /* ranges of remote memory; adjacent ones are merged */
	struct iovec local[UV_BATCH_PIECES];
};

/* One emulated ConnectX with one port. */
struct uv_device {
	unsigned index;
	uint16_t number; /* number of the NIC on this host: its LID and the end of its GIDs */
	bool infiniband, down;
	bool gids_moved;   /* the GIDs are at other indexes: see uv_gid() */
	bool gone;         /* the device was removed: programs do not find it */
	uint32_t life;     /* number of times that it was removed: contexts of before are dead */
	bool maps;         /* true: peers map shared memory; false: system calls move all bytes */
	uint64_t move_max; /* longer READs are checked and complete, but move no bytes */
	int numa_node;
	unsigned gbits;
	uint64_t mr_bytes_max;
	unsigned odd; /* UV_ODD_*, combined with | */
	/* message socket, bound to `number`, which makes the number unique on the host */
	int message_fd;
	unsigned contexts;
	struct dv_device *nic; /* the software NIC of the device; not NULL while contexts > 0 */
	pthread_t runner;
	uint32_t stop;
	uint32_t yields; /* number of steps in threads of the program that yielded */
	struct uv_batch batch;
};

/* odd.c has what they mean; in the order of their names in device.c */
enum uv_odd {
	UV_ODD_TAIL = 1,
	UV_ODD_STALE = 2,
	UV_ODD_TORN = 4,
	UV_ODD_ORDER = 8,
	UV_ODD_SYNDROME = 16,
	UV_ODD_WAY = 32,
	UV_ODD_MTU = 64,
	UV_ODD_SEGMENTS = 128,
	UV_ODD_NOBF = 256,
	UV_ODD_QPS = 512,
	UV_ODD_GIDS = 1024,
	UV_ODD_RELAXED = 2048,
	UV_ODD_VLAN = 4096,
	UV_ODD_BOND = 8192,
};
#define UV_ODD_QPS_MAX 64

enum uv_kind { UV_PD = 1, UV_MR, UV_CQ, UV_QP, UV_UAR, UV_AH };

struct uv_object {
	enum uv_kind kind;
	uint32_t handle;
	struct uv_object *next; /* next object in the list of its context */
	struct uv_context *context;
};

struct uv_uar {
	struct uv_object object;
	uint8_t *at;
	int fd;
	uint32_t page;
	struct uv_uar *uar_next; /* next doorbell page in the list of all pages of the process */
};

/* A channel for completion events or asynchronous events; the program reads read_fd. */
struct uv_channel {
	struct uv_channel *next;
	int read_fd, write_fd;
};

struct uv_cq {
	struct uv_object object;
	struct soft_cq *cq;
	uint64_t user_handle;
	struct uv_channel *channel;
	volatile __be32 *record;
	uint32_t arm_seen;
	bool armed, solicited_only;
	uint32_t events; /* number of completion events sent for the CQ */
	uint32_t async_events;
};

/* What a test sends to the socket of a port. */
struct uv_message {
	uint64_t magic;
	uint32_t kind;   /* enum uv_message_kind */
	uint32_t status; /* is the port up, have its GIDs moved, is the device removed? */
};
static_assert(sizeof(struct uv_message) == 16, "tests/verbs/test_engine.py makes one");
#define UV_MESSAGE_MAGIC 0x31736d2d78636f73ull

/* tests of others send them, too: a kind keeps its number */
enum uv_message_kind { UV_PORT = 3, UV_GID, UV_GONE };

struct uv_qp {
	struct uv_object object;
	struct dv_qp *qp;
	uint64_t user_handle;
	uint32_t pd;
	enum ibv_qp_state state;
	bool sq_sig_all;
	/* QP attributes set by MODIFY_QP and returned by QUERY_QP */
	struct ib_uverbs_modify_qp attributes;
	struct ib_uverbs_create_qp_resp caps;
	/* doorbells */
	uint32_t page;
	/* doorbell register of the page that the QP uses; -1: unknown until its first doorbell */
	int bfreg;
	/* the QP to which this one is connected */
	uint16_t peer_number;
	int peer_pid; /* pid of the peer process; 0: not known yet */
	uint32_t async_events;
};

struct uv_context {
	struct uv_device *device;
	int fd;
	struct uv_channel *async;
	struct uv_object *objects;
	uint32_t life; /* of the device when it was opened */
	uint32_t handle_last, page_last;
	uint64_t locked;         /* bytes of registered pages, which count against RLIMIT_MEMLOCK */
	struct uv_context *next; /* in uv_contexts */
	unsigned id;             /* in the name of its descriptor, see share.c */
	int server_fd;
	pthread_t server;
	bool left;  /* the program has closed its descriptor, and there are copies of it */
	bool ended; /* there are none */
	/* /proc/PID/mem of the process whose command is executed; -1: it is this one */
	int memory;
};

struct uv_mr {
	struct uv_object object;
	struct dv_mr mr;
	uint32_t pd;
	uint64_t locked;
	int memory;   /* /proc/PID/mem of the process that registered it; -1: it was this one */
	uint8_t *map; /* of a dma-buf: where this process has it; NULL: other memory */
	uint64_t map_bytes, map_skip; /* length; bytes in front of the region */
};

/*
 * One verbs command as libibverbs sends it. core_*: structs of ib_user_verbs.h; uhw_*: of
 * mlx5-abi.h.
 */
struct uv_command {
	const void *core_in, *uhw_in;
	void *core_out, *uhw_out;
	size_t core_in_bytes, uhw_in_bytes, core_out_bytes, uhw_out_bytes;
	bool extended;
};

/* Copies a command's response, cut to the room that the caller has, as the kernel does. */
void uv_answer(void *out, size_t out_bytes, const void *from, size_t bytes);

/* interpose.c: marks a descriptor as the library's, so that the interposer handles its close() */
void uv_fd_note(int fd, struct uv_context *context);

/* device.c */
extern pthread_mutex_t uv_lock;
unsigned uv_devices(void);
struct uv_device *uv_device(unsigned index);
/* runs once: reads the variables SOFT_CONNECTX_* and takes a number for each device */
int uv_devices_open(void);
int uv_device_get(struct uv_device *device);
void uv_device_put(struct uv_device *device);
struct uv_device *uv_device_of(struct dv_device *nic);
/* Reports to every context of the device that the port went up or down. Under nic->lock. */
void uv_port_changed(struct uv_device *device, bool up);
/*
 * Moves the GIDs to other indexes, or back. Like a kernel it reports that to contexts while the
 * port has a link. Under nic->lock.
 */
void uv_gids_moved(struct uv_device *device, bool moved);

/*
 * Removes the device, as a kernel does when its driver is unloaded or the NIC is pulled out, or
 * brings it back: contexts get the event and EIO, their queues stop without a completion, and
 * programs do not find it. Under nic->lock, if there is a NIC.
 */
void uv_device_removed(struct uv_device *device, bool gone);
/* Was the device removed since the context was opened? */
bool uv_context_dead(const struct uv_context *context);

/* yield.c */
void uv_yield_open(void);
void uv_yield_never(void); /* the yields of this thread are plain ones: it is a device's thread */
/* Steps the devices for a thread that yields; false: there was no work, so it should yield. */
bool uv_yield(void);

/* sysfs.c */
void uv_sysfs_prepare(void); /* chooses the path of the device tree in sysfs format */
void uv_sysfs_write(void);   /* creates the device tree, once */
void uv_sysfs_remove(void);
/* Shows or hides the device in the tree. */
void uv_sysfs_show(const struct uv_device *device, bool shown);
/* Does the path lie in the device tree, and is the tree not created yet? */
bool uv_sysfs_has(const char *path);
const char *uv_sysfs_path(const char *path, char *to);
#define UV_NAME_BYTES 24
/* The name of the device, such as mlx5_0. */
void uv_device_name(const struct uv_device *device, char ret_name[UV_NAME_BYTES]);
unsigned uv_gids(const struct uv_device *device);
void uv_gid(const struct uv_device *device, unsigned index, uint8_t ret_gid[16]);
uint16_t uv_gid_number(const uint8_t gid[16]);
/* The address of NIC `number` in dv/soft, which stays the same when its GIDs move. */
void uv_name(uint16_t number, uint8_t ret_name[16]);

/* dispatch.c: uv_ioctl() returns 0 or a positive errno */
int uv_ioctl(struct uv_context *context, struct ib_uverbs_ioctl_hdr *header, int memory);
/* in the process that imports a context: answers with a descriptor for its events */
int uv_events_open(struct ib_uverbs_ioctl_hdr *header);
struct uv_object *uv_object_find(struct uv_context *context, uint32_t handle, enum uv_kind kind);
void uv_object_add(struct uv_context *context, struct uv_object *object, enum uv_kind kind);
void uv_object_remove(struct uv_object *object);

/* share.c */
/* Makes the context's command descriptor, and starts to serve its copies. -1: errno says why. */
int uv_share_open(struct uv_context *context);
/*
 * The program has closed its descriptor. True: other copies of it are left, and the context is
 * freed with the last one; else the caller frees it.
 */
bool uv_share_left(struct uv_context *context);
/* Index of the device of a command descriptor, of any process; -1: it is not one. */
int uv_share_index(int fd);
/* The context of this process that a copy of a command descriptor belongs to; NULL: none. */
struct uv_context *uv_share_find(int fd);
/* Executes a command of this process on a device of another one. Returns as uv_ioctl(). */
int uv_share_ioctl(int fd, struct ib_uverbs_ioctl_hdr *header);

/* context.c */
extern struct uv_context *uv_contexts; /* of this process; under uv_lock */
struct uv_context *uv_context_open(unsigned index);
void uv_context_close(struct uv_context *context);
int uv_get_context(struct uv_context *context, struct uv_command *command);
/* what libmlx5 gets of a context that it opens or imports */
struct mlx5_ib_alloc_ucontext_resp uv_context_attributes(const struct uv_device *device);
int uv_query_device(struct uv_context *context, struct uv_command *command);
int uv_query_port(struct uv_context *context, struct uv_command *command);
int uv_alloc_pd(struct uv_context *context, struct uv_command *command);
int uv_dealloc_pd(struct uv_context *context, struct uv_command *command);
int uv_create_ah(struct uv_context *context, struct uv_command *command);
int uv_destroy_ah(struct uv_context *context, struct uv_command *command);

/* uar.c */
int uv_uar_alloc(struct uv_context *context, struct uv_uar **ret_uar);
void uv_uar_free(struct uv_uar *uar);
void *uv_uar_map(struct uv_context *context, uint64_t offset, size_t length);
unsigned uv_uar_scan(struct dv_device *nic);
/* Takes the CQ doorbells from the NIC's pages; returns whether there was one. */
bool uv_uar_armed(struct dv_device *nic);
void uv_uar_tell(struct dv_device *nic, uint64_t element, uint32_t type);

/* memory.c */
int uv_reg_mr(struct uv_context *context, struct uv_command *command);
int uv_dereg_mr(struct uv_context *context, struct uv_command *command);
void uv_mr_free(struct uv_object *object);
/* Registers the bytes from `offset` on of a descriptor that can be mapped; `in` as of REG_MR. */
int uv_reg_dmabuf_mr(struct uv_context *context, const struct ib_uverbs_reg_mr *in, int fd,
	uint64_t offset, struct uv_mr **ret_mr);
/* In the process that registers memory with a device of another one. Returns 0 or an errno. */
int uv_reg_mr_check(struct ib_uverbs_ioctl_hdr *header);
/* Whether the key is one of a region of the queue pair's domain; *ret_mr: the region. */
bool uv_mr_of(const struct dv_qp *qp, uint32_t key, const struct uv_mr **ret_mr);

/*
 * shared.c: returns a descriptor of the memfd that holds the range, which the caller closes; -1:
 * none.
 */
int uv_shared_open(uint64_t start, uint64_t bytes, uint64_t *ret_offset);

/* cq.c */
int uv_create_cq(struct uv_context *context, struct uv_command *command);
int uv_destroy_cq(struct uv_context *context, struct uv_command *command);
void uv_cq_free(struct uv_object *object);
void uv_cq_arm_scan(struct dv_device *nic);
void uv_cq_completed(struct soft_cq *cq, bool solicited);
void uv_cq_overrun(struct soft_cq *cq);

/* qp.c */
int uv_create_qp(struct uv_context *context, struct uv_command *command);
int uv_destroy_qp(struct uv_context *context, struct uv_command *command);
void uv_qp_free(struct uv_object *object);

/* state.c */
int uv_modify_qp(struct uv_context *context, struct uv_command *command);
int uv_query_qp(struct uv_context *context, struct uv_command *command);

/* event.c */
int uv_create_channel(struct uv_context *context, struct uv_command *command);
struct uv_channel *uv_channel_open(void);
struct uv_channel *uv_channel_find(int fd);
/* closes libibverbs' end of the completion event channel `fd`; false: `fd` is not one */
bool uv_channel_close(int fd);
void uv_channel_send(struct uv_channel *channel, const void *event, size_t bytes);
/* Removes the channel's unread events whose first 8 bytes are `key`; returns their number. */
uint32_t uv_channel_take_back(struct uv_channel *channel, uint64_t key, size_t bytes);
void uv_async(struct uv_context *context, uint64_t element, uint32_t type);

/* decode.c */
bool uv_knows(uint8_t opcode);
void uv_decode(struct dv_qp *qp, struct soft_op *op, uint32_t ds);

/* move.c */
bool uv_keys_good(struct dv_qp *qp, const struct soft_op *op);
enum soft_result uv_move_plain(struct dv_qp *qp, struct soft_op *op, uint64_t from, uint64_t count);
/* odd.c: the same, or differently */
enum soft_result uv_move(struct dv_qp *qp, struct soft_op *op, uint64_t from, uint64_t count);
/* odd.c: what READs still owe comes now, if it is time. Under nic->lock. */
void uv_odd_step(struct dv_device *nic);
void uv_gathered(struct dv_qp *qp);

/* message.c */
/* opens the message socket; returns a descriptor or a negative errno */
int uv_message_open(uint16_t number);
/* Takes what tests have sent. Returns the number of messages. */
unsigned uv_message_poll(struct dv_device *nic);
/* Takes what a test has sent to a device that no context has open. The caller holds uv_lock. */
void uv_message_idle(struct uv_device *device);

#endif
