/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens a ConnectX by name: checks the device and creates the protection domain and the thread
 * domain. Reads the port, at the start and whenever it may have changed, and chooses the source GID
 * of queue pairs that are created from then on: the kernel registers the GIDs of a port anew when
 * its link or its addresses come and go, and then their indices may differ. Start-up, control plane
 * and its helper threads.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>

#include "config/log.h"
#include "dv/verbs.h"

#define GID_TEXT INET6_ADDRSTRLEN

/* ---- the GID ------------------------------------------------------------------------------- */

static const char *gid_text(const union ibv_gid *gid, char *text)
{
	return inet_ntop(AF_INET6, gid->raw, text, GID_TEXT) ? text : "?";
}

/*
 * Rank of a GID as RoCE source address; 0: not usable, higher is better. Only RoCE v2 is usable,
 * because only it is routed and spread over several paths. 3: IPv4-mapped, the usual configuration
 * of a network. 2: other IPv6. 1: link-local, which no router forwards and which also interfaces
 * without a usable network have.
 */
static int address_rank(const union ibv_gid *gid)
{
	static const uint8_t zero[16];
	static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
	const uint8_t *raw = gid->raw;

	if (memcmp(raw, zero, 16) == 0)
		return 0;
	if (memcmp(raw, mapped, 12) == 0)
		return 3;
	if (raw[0] == 0xfe && (raw[1] & 0xc0) == 0x80)
		return 1;
	return 2;
}

static int gid_rank(const struct ibv_gid_entry *entry)
{
	return entry->gid_type == IBV_GID_TYPE_ROCE_V2 ? address_rank(&entry->gid) : 0;
}

/*
 * Returns the RoCE GID of the port with the highest rank. Among these it prefers the address that
 * was chosen before, then the lowest index. NULL: none.
 */
static const struct ibv_gid_entry *gid_best(
	const struct dv_device *device, const struct ibv_gid_entry *entries, size_t count)
{
	const struct ibv_gid_entry *best = NULL;
	unsigned best_rank = 0;

	for (size_t i = 0; i < count; i++) {
		const struct ibv_gid_entry *entry = &entries[i];
		unsigned rank = 2 * (unsigned)gid_rank(entry);

		if (entry->port_num != device->port || rank == 0)
			continue;
		rank += memcmp(&entry->gid, &device->path.gid, sizeof(entry->gid)) == 0;
		if (rank > best_rank || (rank == best_rank && entry->gid_index < best->gid_index)) {
			best = entry;
			best_rank = rank;
		}
	}
	return best;
}

static const struct ibv_gid_entry *gid_at(
	const struct ibv_gid_entry *entries, size_t count, unsigned port, uint32_t index)
{
	for (size_t i = 0; i < count; i++)
		if (entries[i].port_num == port && entries[i].gid_index == index)
			return &entries[i];
	return NULL;
}

/*
 * Chooses the GID at the index of the options, or for -1 the best RoCE GID or the first InfiniBand
 * GID, and stores it in *path.
 */
static int gid_choose(const struct dv_device *device, const struct ibv_gid_entry *entries,
	size_t count, struct dv_path *path)
{
	const char *name = device->name;
	const struct ibv_gid_entry *entry;
	bool roce = path->kind == DV_ADDRESS_ROCE_V2;
	int wanted = device->options.gid_index;
	char text[GID_TEXT];

	if (wanted < 0 && roce) {
		entry = gid_best(device, entries, count);
		if (!entry)
			return dv_fail(-EADDRNOTAVAIL,
				"%s port %u has no RoCE v2 GID: give its network interface an IP address, then check with `show_gids` or `rdma link`",
				name, device->port);
	} else {
		uint32_t index = wanted < 0 ? 0 : (uint32_t)wanted;

		entry = index <= UINT8_MAX ? gid_at(entries, count, device->port, index) : NULL;
		if (!entry)
			return dv_fail(-EADDRNOTAVAIL,
				"%s port %u has no GID at index %u: see `show_gids`, or set rail.gid_index = -1 to have one chosen",
				name, device->port, index);
		if (roce && gid_rank(entry) == 0)
			return dv_fail(-EADDRNOTAVAIL,
				"%s port %u: GID %u (%s) is not RoCE v2: see `show_gids`, or set rail.gid_index = -1 to have one chosen",
				name, device->port, index, gid_text(&entry->gid, text));
		/* the address that the setting meant is at another index now */
		if (roce && gid_rank(entry) < address_rank(&device->path.gid))
			return dv_fail(-EADDRNOTAVAIL,
				"%s port %u: GID %u has become %s: the GIDs of the port have moved; set rail.gid_index = -1 to have one chosen, or to the index that `show_gids` shows, and start the engine again",
				name, device->port, index, gid_text(&entry->gid, text));
	}
	path->gid = entry->gid;
	path->gid_index = (uint8_t)entry->gid_index;
	return 0;
}

/* Reads the GID table of the device and chooses a GID from it. */
static int gid_find(const struct dv_device *device, int table_length, struct dv_path *path)
{
	size_t room = (size_t)(table_length > 0 ? table_length : 1) * device->ports;
	struct ibv_gid_entry *entries = calloc(room, sizeof(*entries));
	ssize_t count;
	int rc;

	if (!entries)
		return dv_fail(-ENOMEM, "%s: GID table: %m", device->name);
	count = ibv_query_gid_table(device->context, entries, room, 0);
	if (count < 0)
		rc = dv_fail((int)count,
			"ibv_query_gid_table(%s): %m. Does the port have an address?",
			device->name);
	else
		rc = gid_choose(device, entries, (size_t)count, path);
	free(entries);
	return rc;
}

/* ---- the device and its port --------------------------------------------------------------- */

/* Finds the device by its name and opens it. The device list is freed before this returns. */
static int context_open(struct dv_device *device)
{
	const char *name = device->name;
	int count = 0, rc = 0;
	struct ibv_device **list;
	char known[128] = "";
	size_t used = 0;

	list = ibv_get_device_list(&count);
	if (!list && errno == ENOSYS)
		return dv_fail(-ENODEV,
			"opening NIC %s: this kernel has no RDMA. Load mlx5_ib and ib_uverbs; a container needs /dev/infiniband",
			name);
	if (!list)
		return dv_fail(dv_verbs_errno(errno), "ibv_get_device_list for %s: %m", name);
	for (int i = 0; i < count; i++) {
		const char *other = ibv_get_device_name(list[i]);

		if (strcmp(other, name) == 0) {
			if (!mlx5dv_is_supported(list[i]))
				rc = dv_fail(-EOPNOTSUPP,
					"NIC %s is not a ConnectX (mlx5); no other NICs are supported",
					name);
			else if (!(device->context = ibv_open_device(list[i])))
				rc = dv_fail(dv_verbs_errno(errno),
					"ibv_open_device(%s): %m. May this user open /dev/infiniband/uverbs*?",
					name);
			goto out;
		}
		if (used < sizeof(known) - 1)
			used += (size_t)snprintf(known + used, sizeof(known) - used, " %s", other);
	}
	rc = dv_fail(-ENODEV, "there is no NIC %s here; `rdma link` shows:%s", name,
		count ? known : " none");
out:
	ibv_free_device_list(list);
	return rc;
}

/* Limits the device's number of outstanding READs of a QP to DV_READS_MAX. */
static uint8_t reads_limit(int device_limit)
{
	return (uint8_t)(device_limit < (int)DV_READS_MAX ? device_limit : (int)DV_READS_MAX);
}

/* Reads the device's limits and checks that the device supports READ and has the port. */
static int device_check(struct dv_device *device)
{
	struct ibv_device_attr limits = {0};
	int rc = dv_verbs_result(ibv_query_device(device->context, &limits));

	if (rc)
		return dv_fail(rc, "ibv_query_device(%s): %m", device->name);
	if (device->port > limits.phys_port_cnt)
		return dv_fail(-EINVAL, "%s has %u port(s), there is no port %u", device->name,
			limits.phys_port_cnt, device->port);
	if (limits.max_qp_rd_atom < 1 || limits.max_qp_init_rd_atom < 1)
		return dv_fail(-EOPNOTSUPP,
			"%s cannot do RDMA READ (max_qp_rd_atom %d, max_qp_init_rd_atom %d)",
			device->name, limits.max_qp_rd_atom, limits.max_qp_init_rd_atom);
	if (limits.max_sge_rd < (int)DV_SGES_MAX)
		return dv_fail(-EOPNOTSUPP,
			"%s takes %d data segments in an RDMA READ; the engine needs %u",
			device->name, limits.max_sge_rd, DV_SGES_MAX);
	device->ports = limits.phys_port_cnt;
	device->reads_in = reads_limit(limits.max_qp_rd_atom);
	device->reads_out = reads_limit(limits.max_qp_init_rd_atom);
	device->mr_bytes_max = limits.max_mr_size;
	device->qp_depth_max = (uint32_t)limits.max_qp_wr;
	device->cq_depth_max = (uint32_t)limits.max_cqe;
	return 0;
}

/*
 * Rate of the port in bits per second; 0: unknown. In IBTA PortInfo, LinkSpeedActive and
 * LinkWidthActive have exactly one bit set.
 */
static uint64_t port_bits_per_second(const struct ibv_port_attr *port)
{
	static const struct {
		uint8_t code;
		uint64_t bits; /* nominal bits per second of one lane of the link: 100G for NDR */
	} speeds[] = {{1, 2500000000}, {2, 5000000000}, {4, 10000000000}, {8, 10000000000},
		{16, 14062500000}, {32, 25000000000}, {64, 50000000000}, {128, 100000000000}};
	static const struct {
		uint8_t code, lanes;
	} widths[] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}};
	uint64_t bits = 0, lanes = 0;

	for (size_t i = 0; i < sizeof(speeds) / sizeof(speeds[0]); i++)
		if (speeds[i].code == port->active_speed)
			bits = speeds[i].bits;
	for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++)
		if (widths[i].code == port->active_width)
			lanes = widths[i].lanes;
	return bits * lanes;
}

/*
 * Reads the port and its GIDs. Fills *path as far as it can, also when the port has no link: its
 * GIDs may be there. -ENETDOWN: no link. -EADDRNOTAVAIL: no GID that it may use.
 */
static int port_read(const struct dv_device *device, struct dv_path *path)
{
	const char *name = device->name;
	bool ethernet;
	struct ibv_port_attr port = {0};
	int rc = dv_verbs_result(ibv_query_port(device->context, device->port, &port));

	if (rc)
		return dv_fail(rc, "ibv_query_port(%s, %u): %m", name, device->port);
	ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
	path->kind = ethernet ? DV_ADDRESS_ROCE_V2 : DV_ADDRESS_INFINIBAND;
	path->lid = port.lid;
	path->grh = ethernet || (port.flags & IBV_QPF_GRH_REQUIRED);
	path->bits_per_second = port_bits_per_second(&port);
	rc = gid_find(device, port.gid_tbl_len, path);
	if (rc == 0)
		path->mtu = (uint8_t)port.active_mtu;
	if (port.state != IBV_PORT_ACTIVE)
		return dv_fail(-ENETDOWN, "%s port %u is not active (%s): %s", name, device->port,
			ibv_port_state_str(port.state),
			ethernet ? "check the cable and `ip link set ... up`"
				 : "check the cable and that a subnet manager runs");
	if (!ethernet && port.lid == 0)
		return dv_fail(-ENETDOWN, "%s port %u has no LID: does a subnet manager run?", name,
			device->port);
	if (port.active_mtu < IBV_MTU_256 || port.active_mtu > IBV_MTU_4096)
		return dv_fail(-EPROTO, "%s port %u: MTU code %d is not known", name, device->port,
			port.active_mtu);
	if (device->pkey_index && device->pkey_index >= port.pkey_tbl_len)
		return dv_fail(-EINVAL,
			"%s port %u has %u partition keys, there is none at index %u: lower rail.pkey_index",
			name, device->port, port.pkey_tbl_len, device->pkey_index);
	return rc;
}

/* Logs a path that was not known before. */
static void path_tell(const struct dv_device *device, const struct dv_path *path)
{
	bool roce = path->kind == DV_ADDRESS_ROCE_V2;
	char text[GID_TEXT];

	log_info("%s port %u: %s, GID %u %s (%s), MTU %u", device->name, device->port,
		roce ? "RoCE v2" : "InfiniBand", path->gid_index, gid_text(&path->gid, text),
		device->options.gid_index < 0 ? "chosen" : "as set", 128u << path->mtu);
	if (path->mtu < IBV_MTU_4096)
		log_warn("%s port %u: RDMA MTU is %u, not 4096: bandwidth is lost to headers%s",
			device->name, device->port, 128u << path->mtu,
			roce ? "; set the MTU of the interface to 4200 or more" : "");
}

bool dv_verbs_path_differs(const struct dv_path *a, const struct dv_path *b)
{
	return a->kind != b->kind || a->lid != b->lid || a->grh != b->grh ||
	       a->gid_index != b->gid_index || memcmp(&a->gid, &b->gid, sizeof(a->gid)) != 0;
}

struct dv_path dv_verbs_path(const struct dv_device *device)
{
	pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&device->path_lock;
	struct dv_path path;

	pthread_mutex_lock(lock);
	path = device->path;
	pthread_mutex_unlock(lock);
	return path;
}

/* Reads the port, and stores its path if it has one; the device must be open. */
static int path_read(struct dv_device *device)
{
	struct dv_path path = {0};
	int rc;

	pthread_mutex_lock(&device->look_lock);
	rc = port_read(device, &path);
	if (path.mtu >= IBV_MTU_256 && path.mtu <= IBV_MTU_4096) {
		if (path.mtu != device->path.mtu || dv_verbs_path_differs(&path, &device->path))
			path_tell(device, &path);
		pthread_mutex_lock(&device->path_lock);
		device->path = path;
		pthread_mutex_unlock(&device->path_lock);
	}
	pthread_mutex_unlock(&device->look_lock);
	return rc;
}

static int verbs_port_look(struct dv_device *device)
{
	int rc;

	if (!dv_verbs_enter(device))
		return dv_fail(-ENODEV, "there is no NIC %s here: see `rdma link` and dmesg",
			device->name);
	rc = path_read(device);
	dv_verbs_leave(device);
	return rc;
}

/* ---- the domains --------------------------------------------------------------------------- */

/* Creates the protection domain, the thread domain (a doorbell page) and their parent domain. */
static int domain_open(struct dv_device *device)
{
	struct ibv_td_init_attr td_attr = {0};
	struct ibv_parent_domain_init_attr attr = {0};
	const char *name = device->name;
	int rc;

	device->pd = ibv_alloc_pd(device->context);
	if (!device->pd)
		return dv_fail(dv_verbs_errno(errno), "ibv_alloc_pd(%s): %m", name);
	device->td = ibv_alloc_td(device->context, &td_attr);
	if (!device->td) {
		rc = dv_fail(dv_verbs_errno(errno),
			"ibv_alloc_td(%s): %m. A poll core needs its own doorbell page: is the kernel's mlx5_ib too old?",
			name);
		goto no_td;
	}
	attr.pd = device->pd;
	attr.td = device->td;
	device->domain = ibv_alloc_parent_domain(device->context, &attr);
	if (!device->domain) {
		rc = dv_fail(dv_verbs_errno(errno), "ibv_alloc_parent_domain(%s): %m", name);
		goto no_domain;
	}
	return 0;

no_domain:
	ibv_dealloc_td(device->td);
no_td:
	ibv_dealloc_pd(device->pd);
	return rc;
}

/*
 * The host's traffic class of the port, from sysfs: a line `Global tclass=106` or only the number;
 * 0 when it is not set.
 */
static uint8_t traffic_class_read(const struct dv_device *device)
{
	char path[IBV_SYSFS_PATH_MAX + 64], line[128];
	unsigned value = 0;
	FILE *file;

	snprintf(path, sizeof(path), "%s/tc/%u/traffic_class", device->context->device->ibdev_path,
		device->port);
	file = fopen(path, "re");
	if (!file)
		return 0;
	while (fgets(line, sizeof(line), file)) {
		const char *at = strstr(line, "tclass=");

		if (sscanf(at ? at + 7 : line, "%u", &value) == 1)
			break;
	}
	fclose(file);
	return value <= UINT8_MAX ? (uint8_t)value : 0;
}

/* Checks and stores the options of all QPs: traffic class, service level, PKEY, ACK time-out. */
static int path_check(struct dv_device *device)
{
	const struct dv_options *options = &device->options;

	if (options->traffic_class < -1 || options->traffic_class > UINT8_MAX ||
		options->service_level > 15 || options->ack_timeout > 31)
		return dv_fail(-EINVAL,
			"opening NIC %s: traffic class %d (-1 to 255), service level %u (0 to 15) or ACK time-out %u (1 to 31) is out of range",
			device->name, options->traffic_class, options->service_level,
			options->ack_timeout);
	device->traffic_class = options->traffic_class < 0 ? traffic_class_read(device)
							   : (uint8_t)options->traffic_class;
	device->service_level = options->service_level;
	device->pkey_index = options->pkey_index;
	device->one_flow = options->one_flow;
	device->ack_timeout = options->ack_timeout ? options->ack_timeout : DV_ACK_TIMEOUT;
	log_info("%s port %u: traffic class %u (%s), service level %u, pkey index %u", device->name,
		device->port, device->traffic_class,
		options->traffic_class < 0 ? "the host's" : "as set", device->service_level,
		device->pkey_index);
	return 0;
}

static void device_free(struct dv_device *device)
{
	pthread_rwlock_destroy(&device->gate);
	pthread_mutex_destroy(&device->path_lock);
	pthread_rwlock_destroy(&device->mrs_lock);
	pthread_mutex_destroy(&device->known_lock);
	pthread_mutex_destroy(&device->domains_lock);
	free(device->known);
	pthread_mutex_destroy(&device->look_lock);
	free(device);
}

/*
 * Opens the NIC: a context, its port, its domains. -ENODEV: it is not there. A port that cannot be
 * used is no failure with dv_options.later.
 */
static int device_open(struct dv_device *device)
{
	int rc = context_open(device);

	if (rc)
		return rc;
	rc = device_check(device);
	if (rc == 0)
		rc = path_check(device);
	if (rc == 0)
		rc = path_read(device);
	if (device->options.later && (rc == -ENETDOWN || rc == -EADDRNOTAVAIL))
		rc = 0;
	if (rc == 0)
		rc = domain_open(device);
	if (rc)
		ibv_close_device(device->context);
	return rc;
}

static int verbs_open(const struct dv_options *options, struct dv_device **ret_device)
{
	struct dv_device *device;
	int rc;

	if (options->port < 0 || options->port > UINT8_MAX)
		return dv_fail(-EINVAL, "opening NIC %s: there is no port %d", options->name,
			options->port);
	if (strlen(options->name) >= sizeof(device->name))
		return dv_fail(
			-EINVAL, "opening NIC %.32s...: the name is too long", options->name);
	device = calloc(1, sizeof(*device));
	if (!device)
		return dv_fail(-ENOMEM, "opening NIC %s: %m", options->name);
	/* Unset: with this variable libmlx5 reports a queue as destroyed that the kernel still
	 * has. */
	unsetenv("RDMAV_ALLOW_DISASSOC_DESTROY");
	device->ops = &dv_verbs_ops;
	strcpy(device->name, options->name);
	device->port = (uint8_t)(options->port ? options->port : 1);
	device->options = *options;
	device->options.name = device->options.link = device->options.address = NULL;
	pthread_mutex_init(&device->look_lock, NULL);
	pthread_mutex_init(&device->path_lock, NULL);
	pthread_rwlock_init(&device->mrs_lock, NULL);
	pthread_mutex_init(&device->known_lock, NULL);
	pthread_mutex_init(&device->domains_lock, NULL);
	pthread_rwlock_init(&device->gate, NULL);
	rc = device_open(device);
	if (rc == -ENODEV && options->later) {
		/* as after dv_cut(): no call reaches a device */
		device->cut = true;
		dv_hint_store(&device->cut_wanted, 1);
		rc = 0;
	}
	if (rc)
		device_free(device);
	else
		*ret_device = device;
	return rc;
}

/* While `gate` is held, calls of other threads act as after dv_cut(). */
static int verbs_reopen(struct dv_device *device)
{
	int rc = 0;

	pthread_rwlock_wrlock(&device->gate);
	if (device->cut_error)
		rc = dv_fail(device->cut_error,
			"opening NIC %s: the kernel still has what it was closed with",
			device->name);
	else if (device->cut)
		rc = device_open(device);
	if (rc == 0 && device->cut) {
		device->cut = false;
		dv_verbs_mr_forget(device);
		dv_hint_store(&device->life, device->life + 1);
		dv_hint_store(&device->cut_wanted, 0);
	}
	pthread_rwlock_unlock(&device->gate);
	return rc;
}

/*
 * Closes the device. A domain that still has a memory region or a queue cannot be freed; the kernel
 * frees it at process exit.
 */
static void verbs_close(struct dv_device *device)
{
	const char *name = device->name;
	int rc;

	if (device->cut) {
		device_free(device);
		return;
	}
	rc = dv_verbs_result(ibv_dealloc_pd(device->domain));
	if (rc == 0)
		rc = dv_verbs_result(ibv_dealloc_td(device->td));
	if (rc == 0)
		rc = dv_verbs_result(ibv_dealloc_pd(device->pd));
	if (rc)
		log_error("closing %s: %s: a memory region or queue of it still exists", name,
			strerror(-rc));
	ibv_close_device(device->context);
	device_free(device);
}

static void verbs_attributes(const struct dv_device *device, struct dv_attributes *ret)
{
	*ret = (struct dv_attributes){
		.bits_per_second = dv_verbs_path(device).bits_per_second, .hardware = true};
}

const struct dv_ops dv_verbs_ops = {
	.open = verbs_open,
	.close = verbs_close,
	.attributes = verbs_attributes,
	.port_look = verbs_port_look,
	.mr_register = dv_verbs_mr_register,
	.mr_deregister = dv_verbs_mr_deregister,
	.cq_create = dv_verbs_cq_create,
	.cq_destroy = dv_verbs_cq_destroy,
	.qp_create = dv_verbs_qp_create,
	.qp_address = dv_verbs_qp_address,
	.qp_connect = dv_verbs_qp_connect,
	.qp_error = dv_verbs_qp_error,
	.qp_ack_ns = dv_verbs_qp_ack_ns,
	.qp_stale = dv_verbs_qp_stale,
	.qp_kill = dv_verbs_qp_kill,
	.qp_destroy = dv_verbs_qp_destroy,
	.cut = dv_verbs_cut,
	.reopen = verbs_reopen,
	.mr_stale = dv_verbs_mr_stale,
	.lend = dv_verbs_lend,
	.mr_import = dv_verbs_mr_import,
	.mr_sweep = dv_verbs_mr_sweep,
	.event_fd = dv_verbs_event_fd,
	.event_next = dv_verbs_event_next,
};
