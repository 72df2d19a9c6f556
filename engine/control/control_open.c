/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Builds the control plane and takes it down: a table of steps, opened from the top and closed from
 * the bottom, so that a failure undoes exactly the steps that succeeded. --check opens and closes
 * again those steps that need nothing which an engine that serves now may hold. Start-up and
 * shutdown, control plane's thread.
 */
#include "engine/control/control_open.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "config/hooks.h"
#include "config/log.h"
#include "engine/control/clients/clients.h"
#include "engine/control/conns/conns.h"
#include "engine/control/control_inner.h"
#include "engine/control/copies/copies.h"
#include "engine/control/directory/directory.h"
#include "engine/control/loop.h"
#include "engine/control/members/members.h"
#include "engine/control/net/net.h"
#include "engine/control/net/rpc.h"
#include "engine/control/net/secure.h"
#include "engine/control/observe/observe.h"
#include "engine/control/pages/pages.h"
#include "engine/control/base/watchdog.h"
#include "engine/keeper/service.h"
#include "engine/keeper/socket_file.h"
#include "numa/guest.h"
#include "numa/limit.h"

/*
 * struct control and those parts of rooms that it points to from the start. One allocation, at
 * whose beginning struct control is.
 */
struct engine {
	struct control control;
	struct loop loop;
	struct shard shard;
	struct statistics statistics;
};

/* ---- the engine itself ----------------------------------------------------------------------- */

static int control_identity_open(struct control *control)
{
	const struct settings *s = control->settings;
	char address[ADDRESS_TEXT_BYTES];
	int n;

	do {
		if (getrandom(&control->incarnation, sizeof(control->incarnation), 0) !=
			(ssize_t)sizeof(control->incarnation))
			return -EIO;
		control->ref = (uint32_t)control->incarnation;
	} while (control->ref == 0);
	if (s->engine_name[0])
		n = snprintf(control->name, sizeof(control->name), "%s", s->engine_name);
	else
		n = snprintf(control->name, sizeof(control->name), "%s",
			address_text(s->cluster_address, (unsigned)s->cluster_port, address));
	if (n < 0 || (size_t)n >= sizeof(control->name)) {
		log_error(
			"name %s is longer than %u; set engine.name", address, NAME_BYTES_MAX - 1);
		return -ENAMETOOLONG;
	}
	return 0;
}

static void control_events_close(struct control *control)
{
	loop_events_close(control);
	if (control->kick >= 0)
		close(control->kick);
	for (unsigned i = 0; i < control->rails; i++)
		if (control->rail[i].kick >= 0)
			close(control->rail[i].kick);
	if (control->base)
		event_base_free(control->base);
}

/*
 * One eventfd per poll core: its thread can sleep on only one, and must wake for any of its rails.
 */
static int control_rail_kick(const struct control *control, unsigned rail)
{
	const struct plan *plan = &control->plan;

	for (unsigned i = 0; i < rail; i++)
		if (plan->rail[i].poll_core == plan->rail[rail].poll_core)
			return fcntl(control->rail[i].kick, F_DUPFD_CLOEXEC, 0);
	return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

/* libevent's messages, in the format of the log. Any thread. */
static void control_on_libevent(int severity, const char *text)
{
	static const enum log_level level[] = {[EVENT_LOG_DEBUG] = LOG_DEBUG,
		[EVENT_LOG_MSG] = LOG_INFO,
		[EVENT_LOG_WARN] = LOG_WARN,
		[EVENT_LOG_ERR] = LOG_ERROR};

	log_at(severity < 0 || severity > EVENT_LOG_ERR ? LOG_WARN : level[severity],
		"libevent: %s", text);
}

static int control_events_open(struct control *control)
{
	struct event_config *config;
	int rc;

	event_set_log_callback(control_on_libevent);
	config = event_config_new();
	control->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	rc = control->kick < 0 ? -errno : 0;
	for (unsigned i = 0; i < control->rails; i++) {
		control->rail[i].kick = control_rail_kick(control, i);
		if (control->rail[i].kick < 0)
			rc = -errno;
	}
	if (config) {
		event_config_set_flag(config, EVENT_BASE_FLAG_PRECISE_TIMER);
		control->base = event_base_new_with_config(config);
		event_config_free(config);
	}
	if (rc == 0)
		rc = control->base ? loop_events_open(control) : -ENOMEM;
	if (rc < 0)
		control_events_close(control);
	return rc;
}

/* ---- NICs ------------------------------------------------------------------------------------ */

static void control_devices_close(struct control *control)
{
	for (unsigned i = 0; i < control->rails; i++) {
		if (control->rail[i].device)
			dv_close(control->rail[i].device);
		control->rail[i].device = NULL;
	}
}

static void model_warn(const struct control *control)
{
	const struct port_model *model = &control->port_model;
	struct dv_attributes nic;

	dv_attributes(control->rail[0].device, &nic);
	if (nic.modelled)
		log_warn(
			"the rails are MODELLED: times are those of %u Gbit/s and %u ns, not of this machine%s",
			model->rate_gbps, model->rtt_ns,
			TEST_HOOK(model->still)
				? "; \"still\": pages read from other nodes hold WRONG BYTES"
				: "");
}

/* Logs why no rail could be a ConnectX, on a host where that is so. */
static void rdma_tell(const struct control *control)
{
	struct dv_attributes nic;

	dv_attributes(control->rail[0].device, &nic);
	if (!nic.hardware && dv_verbs_check() < 0)
		log_info("no RDMA here, only software NICs: %s", dv_error());
}

/* Returns the settings that decide whether the device can be opened, for the error message. */
static const char *device_settings(const struct settings *s, const char *name)
{
	if (strncmp(name, "soft", 4) != 0)
		return "rail.devices, rail.gid_index";
	if (s->soft_link != LINK_TCP)
		return "rail.devices";
	if (s->soft_port)
		return s->soft_address[0] ? "soft.address, soft.port"
					  : "cluster.address, soft.port";
	return s->soft_address[0] ? "soft.address" : "cluster.address";
}

/*
 * Ports without a link, or without a GID, are rails that are out of use until they have one. At
 * least one must be usable, or all, if rail.require_all says so.
 */
static int devices_usable(const struct control *control)
{
	unsigned usable = 0;
	int first = 0;

	for (unsigned i = 0; i < control->rails; i++) {
		int rc = dv_port_look(control->rail[i].device);

		usable += rc == 0;
		if (rc == 0)
			continue;
		if (!first)
			first = rc;
		if (control->settings->rail_require_all)
			log_error("rail %u: %s; rail.require_all = yes needs all of them", i,
				dv_error());
		else
			log_warn("rail %u: %s", i, dv_error());
	}
	if (!first || (usable && !control->settings->rail_require_all))
		return 0;
	if (!usable)
		log_error(
			"rail.devices, rail.gid_index: none of %u rail(s) can be used; the lines above say why and what to do",
			control->rails);
	return first;
}

/* The port of a software NIC over TCP: soft.port for the first, the next for the second. */
static uint16_t control_soft_port(const struct control *control, unsigned rail)
{
	unsigned before = 0;

	for (unsigned i = 0; i < rail; i++)
		before += strncmp(control->plan.rail[i].device, "soft", 4) == 0;
	return control->settings->soft_port ? (uint16_t)(control->settings->soft_port + before) : 0;
}

static int control_devices_open(struct control *control)
{
	const struct settings *s = control->settings;
	char why[256];

	if (port_model_parse(s->soft_model, &control->port_model, why, sizeof(why)) < 0) {
		log_error("soft.model = %s: %s", s->soft_model, why);
		return -EINVAL;
	}
	for (unsigned i = 0; i < control->rails; i++) {
		const char *name = control->plan.rail[i].device;
		char soft[NAME_BYTES_MAX];
		struct dv_options options = {.name = name,
			.port = 1,
			.gid_index = (int)s->rail_gid_index,
			.later = true,
			.ack_timeout = (uint8_t)s->rail_ack_timeout,
			.traffic_class = (int)s->rail_traffic_class,
			.service_level = (uint8_t)s->rail_service_level,
			.pkey_index = (uint16_t)s->rail_pkey_index,
			.one_flow = !s->rail_flow_labels,
			.link = s->soft_link == LINK_TCP ? "tcp" : "shm",
			.tcp_port = control_soft_port(control, i),
			.address = s->soft_address[0] ? s->soft_address : s->cluster_address,
			.model = control->port_model};
		int rc;

		if (strcmp(name, "soft") == 0) {
			snprintf(soft, sizeof(soft), "soft:%u", i);
			options.name = soft;
		}
		rc = dv_open(&options, &control->rail[i].device);
		if (rc < 0) {
			log_error("rail %u (%s): %s", i, device_settings(s, options.name),
				dv_error());
			control_devices_close(control);
			return rc;
		}
	}
	if (control->rails) {
		int rc = devices_usable(control);

		if (rc < 0) {
			control_devices_close(control);
			return rc;
		}
		model_warn(control);
		rdma_tell(control);
	}
	return 0;
}

/* ---- rails ----------------------------------------------------------------------------------- */

static void control_rails_close(struct control *control)
{
	for (unsigned i = 0; i < control->rails; i++) {
		if (control->rail[i].rail)
			rail_close(control->rail[i].rail);
		control->rail[i].rail = NULL;
	}
}

/* Chooses how rails validate pages (rail.validate), and logs the choice and its reason. */
static bool lease_choose(const struct settings *s)
{
	const char *sign = guest_sign();

	if (s->rail_validate == VALIDATE_TAIL) {
		log_info("pages are validated by tail, as rail.validate says");
		return false;
	}
	if (s->rail_validate == VALIDATE_LEASE) {
		if (sign)
			log_warn(
				"rail.validate = lease under a hypervisor (%s): if it pauses this machine while a NIC goes on, reads can return wrong bytes; set rail.validate = tail unless the NICs are simulated, too",
				sign);
		else
			log_info("pages are validated by lease, as rail.validate says");
		return true;
	}
	log_info("pages are validated by %s (rail.validate = %s): %s", sign ? "tail" : "lease",
		s->rail_validate == VALIDATE_CRC ? "crc, so each is compared with its CRC32C, too"
						 : "auto",
		sign ? sign : "no sign of a hypervisor");
	return !sign;
}

static int control_rails_open(struct control *control)
{
	const struct settings *s = control->settings;
	bool lease = control->rails && lease_choose(s);

	for (unsigned i = 0; i < control->rails; i++) {
		const struct rail_options options = {.index = i,
			.device = control->rail[i].device,
			.status = control->status,
			.kick = control->rail[i].kick,
			.control_kick = control->kick,
#ifdef TEST_HOOKS
			.skip_head_check = s->test_skip_head_check,
#endif
			.lease = lease};
		int rc = rail_open(&options, &control->rail[i].rail);

		if (rc < 0) {
			log_error("rail %u: %s: %s", i, strerror(-rc), dv_error());
			control_rails_close(control);
			return rc;
		}
	}
	return 0;
}

static void poll_cores_stop(struct control *control)
{

	if (loop_rails_stop(control, LOOP_STOP_NS) < 0) {
		control->loop->result = -ETIMEDOUT;
		return;
	}
	for (unsigned p = 0; p < RAILS_MAX; p++) {
		poll_core_close(control->poll_core[p]);
		control->poll_core[p] = NULL;
	}
}

static int poll_core_begin(struct control *control, unsigned number)
{
	const struct plan *plan = &control->plan;
	struct poll_core_options options = {
#ifdef TEST_HOOKS
		.clock = control->clock_file,
		.doorbell_ns = control->port_model.doorbell_ns,
		.line_ns = control->port_model.line_ns,
#endif
		.spin_ns = (uint64_t)control->settings->rail_spin_us * 1000};
	struct rail *rail[RAILS_MAX];
	unsigned rails = 0;
	int rc;

	for (unsigned i = 0; i < plan->rails; i++) {
		if (plan->rail[i].poll_core != number)
			continue;
		options.core = plan->rail[i].core;
		options.busy = plan->rail[i].busy;
		rail[rails++] = control->rail[i].rail;
	}
	rc = poll_core_start(&options, rail, rails, &control->poll_core[number]);
	for (unsigned i = 0; i < plan->rails && rc == 0; i++)
		control->loop->started[i] |= plan->rail[i].poll_core == number;
	return rc;
}

static int poll_cores_start(struct control *control)
{
	for (unsigned p = 0; p < control->plan.poll_cores; p++) {
		int rc = poll_core_begin(control, p);

		if (rc < 0) {
			log_error("poll core %u: starting its thread: %s", p, limit_error(rc));
			poll_cores_stop(control);
			return rc;
		}
	}
	return 0;
}

/*
 * Open files of an engine without clients, members and disks: a kernel's message about one of them
 * names neither the limit nor what is needed.
 */
#define FILES_ENGINE 64u
#define FILES_RAIL 24u

static int files_check(struct control *control)
{
	unsigned least = FILES_ENGINE + FILES_RAIL * control->rails;
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur >= least)
		return 0;
	log_error(
		"RLIMIT_NOFILE is %llu, this engine needs %u open files by itself, and more for clients and members; raise ulimit -n or LimitNOFILE= to 65536",
		(unsigned long long)limit.rlim_cur, least);
	return -EMFILE;
}

/* ---- all together ---------------------------------------------------------------------------- */

static int control_epochs_open(struct control *control)
{
	return epochs_open(control, clients_accept);
}

static void ctl_memory_close(struct control *control)
{
	clear_close(control);
	ctl_free(control->ctl);
	control->ctl = NULL;
}

/*
 * An open function that fails has undone its own work. Steps are closed from the bottom, so the
 * rails come to rest first. NULL: nothing is opened, or closed.
 */
static const struct {
	const char *what;
	int (*open)(struct control *control);
	void (*close)(struct control *control);
} steps[] = {
	{"name", control_identity_open, NULL},
	{"open files", files_check, NULL},
	{"event loop", control_events_open, control_events_close},
	/*
	 * Addresses first: allocating the memory takes long, and another engine may have taken an
	 * address.
	 */
	{"client socket", client_socket_open, client_socket_close},
	{"allowed users", client_access_check, NULL},
	{"cluster address", rpc_port_open, rpc_port_close},
	{"cluster.security", secure_open, secure_close},
	{"metrics.port", metrics_port_open, metrics_port_close},
	{"seeds", member_seeds_check, NULL},
	{"cluster.etcd", etcd_open, etcd_close},
	{"status segment", memory_status_open, memory_status_close},
	{"memory of the engine before", warm_open, warm_close},
	{"pools", memory_pools_open, memory_pools_close},
	{"identity", warm_identity, NULL},
	{"directory shard", memory_shard_open, memory_shard_close},
	{"NICs", control_devices_open, control_devices_close},
	{"events of the NICs", device_event_open, device_event_close},
	{"memory registration", memory_export, memory_unexport},
	{"rails", control_rails_open, control_rails_close},
	/*
	 * The memory of ctl.c is freed after directory_close(), which still calls back into
	 * ctl.c
	 */
	{"answers", NULL, ctl_memory_close},
	{"cluster view", view_open, view_close},
	{"epochs", control_epochs_open, epochs_close},
	{"engine-to-engine port", rpc_open, rpc_close},
	{"member table", members_open, members_close},
	{"cluster.seeds_file", seeds_file_open, seeds_file_close},
	{"directory", directory_open, directory_close},
	{"connections", conns_open, conns_close},
	{"heartbeat", tick_open, tick_close},
#ifdef TEST_HOOKS
	{"test hooks", test_hooks_open, test_hooks_close},
#endif
	{"publishing", ctl_open, ctl_close},
	{"pages on other disks", promote_open, promote_close},
	{"disk", tier_open, tier_close},
	{"copies", copies_open, copies_close},
	{"scrubber", scrub_open, scrub_close},
	{"clients", clients_open, clients_close},
	{"pages of the engine before", warm_begin, warm_end},
	{"poll cores", poll_cores_start, poll_cores_stop},
	/*
	 * After what allocates and writes much memory, because it leaves only a little for the
	 * rest. Before the first client, which would pay for the pages that it touches, and before
	 * the watchdog: without a thread for it the call is made here, and is slow.
	 */
	{"population of the memory", populate_open, populate_close},
	{"watchdog", watchdog_open, watchdog_close},
	/* before the first report: one of memory that is registered at once would be untrue */
	{"cluster", memory_export_wait, NULL},
	{"metrics", metrics_open, metrics_close},
};
#define STEPS (sizeof(steps) / sizeof(steps[0]))

static void control_steps_close(struct control *control, size_t opened)
{
	while (opened-- > 0) {
		if (steps[opened].close)
			steps[opened].close(control);
		if (control->loop->result == -ETIMEDOUT) {
			log_error(
				"stopping: a poll core has not stopped in time; its memory is left to the kernel");
			return;
		}
	}
	free(control);
}

static struct control *control_new(const struct settings *settings, const struct plan *plan)
{
	struct engine *engine = calloc(1, sizeof(*engine));
	struct control *control;

	if (!engine || plan->rails > RAILS_MAX) {
		free(engine);
		return NULL;
	}
	control = &engine->control;
	control->loop = &engine->loop;
	control->shard = &engine->shard;
	control->statistics = &engine->statistics;
	control->settings = settings;
	control->plan = *plan;
	control->rails = plan->rails;
	control->kick = control->port_fd = control->metrics_fd = -1;
	for (unsigned i = 0; i < RAILS_MAX; i++)
		control->rail[i].kick = -1;
	upward_fill(control);
	return control;
}

int control_open(
	const struct settings *settings, const struct plan *plan, struct control **ret_control)
{
	struct control *control = control_new(settings, plan);

	if (!control)
		return -ENOMEM;
	control->pace.started_ns = net_now();
	control->pace.started_unix_ms = snapshot_unix_ms();
	for (size_t i = 0; i < STEPS; i++) {
		int rc;

		service_extend();
		rc = steps[i].open ? steps[i].open(control) : 0;
		if (rc < 0) {
			log_error("starting: %s: %s", steps[i].what, limit_error(rc));
			control_steps_close(control, i);
			return rc;
		}
	}
	*ret_control = control;
	return 0;
}

void control_close(struct control *control)
{
	if (control)
		control_steps_close(control, STEPS);
}

/* ---- --check --------------------------------------------------------------------------------- */

/* Is cluster.address, or cluster.bind, an address of this host? Any free port tells. */
static int address_check(struct control *control)
{
	const struct settings *s = control->settings;
	struct settings any = *s;
	int rc;

	any.cluster_port = 0;
	control->settings = &any;
	rc = rpc_port_open(control);
	rpc_port_close(control);
	control->settings = s;
	return rc;
}

static int socket_check(struct control *control)
{
	return socket_file_check(control->settings->engine_socket);
}

/* The engine starts without some of its NICs, which a misspelt name would be, too. */
static int devices_check(struct control *control)
{
	int rc = 0;

	for (unsigned i = 0; i < control->rails; i++) {
		if (!control->plan.rail[i].absent)
			continue;
		log_error(
			"rail.devices: no NIC %s on this machine; `rdma link` shows those that there are",
			control->plan.rail[i].device);
		rc = -ENODEV;
	}
	return rc;
}

/* Pools that are larger than the host never fit; whether smaller ones do, the start tells. */
static int memory_check(struct control *control)
{
	uint64_t wanted = control->settings->engine_pool_bytes * control->plan.rails,
		 has = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);

	if (wanted < has)
		return 0;
	log_error(
		"engine.pool_bytes: %llu MiB wanted for %u rail(s), this host has %llu MiB of memory; lower engine.pool_bytes",
		(unsigned long long)(wanted >> 20), control->plan.rails,
		(unsigned long long)(has >> 20));
	return -ENOMEM;
}

static int etcd_check(struct control *control)
{
	int rc;

	control->base = event_base_new();
	if (!control->base)
		return -ENOMEM;
	rc = etcd_open(control);
	if (rc == 0)
		etcd_close(control);
	event_base_free(control->base);
	return rc;
}

int control_check(const struct settings *settings, const struct plan *plan, const struct unit *unit,
	unsigned unchecked)
{
	static const struct {
		int (*check)(struct control *control);
		unsigned needs; /* is left out with any of these */
	} checks[] = {{control_identity_open, 0}, {devices_check, 0}, {address_check, 0},
		{member_seeds_check, 0}, {etcd_check, UNCHECKED_FILES},
		{secure_check, UNCHECKED_FILES}, {socket_check, UNCHECKED_FILES | UNCHECKED_SOCKET},
		{client_access_check, 0}, {metrics_port_check, 0},
		{metrics_files_check, UNCHECKED_FILES}, {memory_check, 0}};
	struct control *control = control_new(settings, plan);
	int rc = control ? 0 : -ENOMEM;

	for (size_t i = 0; control && i < sizeof(checks) / sizeof(checks[0]); i++) {
		int failed = checks[i].needs & unchecked ? 0 : checks[i].check(control);

		rc = failed < 0 && rc == 0 ? failed : rc;
	}
	if (!(unchecked & UNCHECKED_FILES)) {
		int failed = tier_check(settings, unit);

		rc = failed < 0 && rc == 0 ? failed : rc;
	}
	free(control);
	return rc;
}
