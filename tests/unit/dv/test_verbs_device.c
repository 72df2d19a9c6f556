/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests dv/device.c against stubs: the chosen GID, the refusals and their texts, and that a failure
 * at any step frees all that was created. One thread.
 */
#include "tests/unit/dv/test_verbs_stub.h"

/* Checks that dv_open() fails with `error` and a text that contains `words`. */
static void refused(const struct dv_options *options, int error, const char *words)
{
	struct dv_device *device = (void *)&stub;

	assert_int_equal(dv_verbs_ops.open(options, &device), error);
	assert_ptr_equal(device, &stub); /* dv_open() failed and left its output unchanged */
	error_has(words);
}

static const struct dv_options usual = {.name = "mlx5_0", .gid_index = -1};

static void a_roce_port_is_opened_with_all_its_attributes(void **state)
{
	struct dv_device *device = stub_open();
	struct dv_attributes attributes;

	assert_ptr_equal(device->ops, &dv_verbs_ops);
	dv_verbs_ops.attributes(device, &attributes);
	assert_string_equal(device->name, "mlx5_0");
	assert_true(device->mr_bytes_max == UINT64_MAX);
	assert_int_equal(device->qp_depth_max, 32768);
	assert_int_equal(device->cq_depth_max, 4194303);
	assert_true(attributes.bits_per_second == 400000000000ull);
	assert_true(attributes.hardware);
	assert_null(dv_verbs_ops.step_all);
	assert_non_null(strstr(stub.log, "RoCE v2, GID 3 ::ffff:10.0.0.1 (chosen), MTU 4096"));
	dv_verbs_ops.close(device);
}

/* Each row is the GID table of a port and the index in it that dv_open() must choose. */
static void the_best_gid_of_the_table_is_chosen(void **state)
{
	static const struct {
		struct {
			uint32_t type;
			const char *text;
		} gid[STUB_GIDS];
		int chosen; /* index of the GID that must be chosen; -1: dv_open() must fail */
	} rows[] = {
		{{{IBV_GID_TYPE_ROCE_V2, "fe80::1"}, {IBV_GID_TYPE_ROCE_V2, "2001:db8::1"},
			 {IBV_GID_TYPE_ROCE_V2, "::ffff:10.0.0.1"}},
			2},
		{{{IBV_GID_TYPE_ROCE_V2, "fe80::1"}, {IBV_GID_TYPE_ROCE_V2, "fd00::1"}}, 1},
		{{{IBV_GID_TYPE_ROCE_V2, "fe80::1"}}, 0},
		{{{IBV_GID_TYPE_ROCE_V2, "febf::1"}, {IBV_GID_TYPE_ROCE_V2, "fec0::1"}}, 1},
		{{{IBV_GID_TYPE_ROCE_V1, "::ffff:10.0.0.1"}, {IBV_GID_TYPE_ROCE_V2, "fe80::1"}}, 1},
		{{{IBV_GID_TYPE_ROCE_V2, "::ffff:10.0.0.1"},
			 {IBV_GID_TYPE_ROCE_V2, "::ffff:10.0.0.2"}},
			0},
		{{{IBV_GID_TYPE_ROCE_V2, "::"}, {IBV_GID_TYPE_ROCE_V2, "2001:db8::1"}}, 1},
		{{{IBV_GID_TYPE_ROCE_V2, "::"}}, -1},
		{{{IBV_GID_TYPE_ROCE_V1, "::ffff:10.0.0.1"}}, -1},
		{{{0, NULL}}, -1},
	};

	for (size_t row = 0; row < sizeof(rows) / sizeof(rows[0]); row++) {
		struct dv_device *device;

		stub.gid_count = 0;
		for (unsigned i = 0; i < STUB_GIDS && rows[row].gid[i].text; i++)
			stub_gid(i, rows[row].gid[i].type, rows[row].gid[i].text);
		if (rows[row].chosen < 0) {
			refused(&usual, -EADDRNOTAVAIL, "has no RoCE v2 GID: give its network");
			continue;
		}
		device = stub_open();
		assert_int_equal(device->path.gid_index, rows[row].chosen);
		assert_memory_equal(&device->path.gid, &stub.gids[rows[row].chosen].gid, 16);
		dv_verbs_ops.close(device);
	}
}

/*
 * The kernel lists the valid GIDs of all ports, in any order. The index of a GID is a field of its
 * entry, not its place in the list.
 */
static void the_gid_index_is_not_the_place_in_the_list(void **state)
{
	struct dv_device *device;

	stub.gid_count = 0;
	stub_gid(0, IBV_GID_TYPE_ROCE_V2, "::ffff:10.0.0.9");
	stub_gid(1, IBV_GID_TYPE_ROCE_V2, "::ffff:10.0.0.2");
	stub_gid(2, IBV_GID_TYPE_ROCE_V2, "::ffff:10.0.0.3");
	stub.gids[0].port_num = 2;
	stub.gids[1].gid_index = 7;
	stub.gids[2].gid_index = 5;
	device = stub_open();
	assert_int_equal(device->path.gid_index, 5);
	assert_memory_equal(&device->path.gid, &stub.gids[2].gid, 16);
	dv_verbs_ops.close(device);
}

static void a_configured_gid_index_is_checked_and_used(void **state)
{
	struct dv_options options = {.name = "mlx5_0", .gid_index = 1};
	struct dv_device *device;

	assert_int_equal(dv_verbs_ops.open(&options, &device), 0);
	/* a link-local GID is chosen, because the settings request its index */
	assert_int_equal(device->path.gid_index, 1);
	assert_non_null(strstr(stub.log, "GID 1 fe80::1 (as set)"));
	dv_verbs_ops.close(device);
	options.gid_index = 2;
	refused(&options, -EADDRNOTAVAIL, "GID 2 (::ffff:10.0.0.1) is not RoCE v2");
	options.gid_index = 4;
	refused(&options, -EADDRNOTAVAIL, "has no GID at index 4");
	stub_gid(4, IBV_GID_TYPE_ROCE_V2, "2001:db8::1");
	/* an address handle has 8 bits for the GID index, so index 259 must be refused */
	stub.gids[4].gid_index = 256 + 3;
	options.gid_index = 256 + 3;
	refused(&options, -EADDRNOTAVAIL, "has no GID at index 259");
}

static void infiniband_uses_its_lid_and_first_gid(void **state)
{
	struct dv_device *device;

	stub.port.link_layer = IBV_LINK_LAYER_INFINIBAND;
	stub.port.lid = 12;
	stub_gid(0, IBV_GID_TYPE_IB, "fe80::b");
	stub.gid_count = 1;
	device = stub_open();
	assert_int_equal(device->path.kind, DV_ADDRESS_INFINIBAND);
	assert_int_equal(device->path.lid, 12);
	assert_int_equal(device->path.gid_index, 0);
	assert_false(device->path.grh);
	dv_verbs_ops.close(device);
	stub.port.flags = IBV_QPF_GRH_REQUIRED;
	device = stub_open();
	assert_true(device->path.grh);
	dv_verbs_ops.close(device);
	stub.port.lid = 0;
	refused(&usual, -ENETDOWN, "has no LID: does a subnet manager run?");
}

static void unusable_devices_are_refused_with_a_reason(void **state)
{
	struct dv_options options = {.name = "mlx5_9", .gid_index = -1};
	char long_name[NAME_BYTES_MAX + 1];

	refused(&options, -ENODEV, "there is no NIC mlx5_9 here; `rdma link` shows: mlx5_7 mlx5_0");
	stub.fail_at = stub.calls + 1;
	stub.fail_errno = ENOSYS; /* the errno that libibverbs returns on a kernel without RDMA */
	refused(&usual, -ENODEV, "this kernel has no RDMA. Load mlx5_ib");
	stub.no_devices = true;
	refused(&usual, -ENODEV, "shows: none");
	stub.no_devices = false;
	memset(long_name, 'x', sizeof(long_name) - 1);
	long_name[sizeof(long_name) - 1] = 0;
	options.name = long_name;
	refused(&options, -EINVAL, "too long");
	options.name = "mlx5_0";
	options.port = 2;
	refused(&options, -EINVAL, "mlx5_0 has 1 port(s), there is no port 2");
	options.port = 256;
	refused(&options, -EINVAL, "there is no port 256");
	stub.foreign = true;
	refused(&usual, -EOPNOTSUPP, "mlx5_0 is not a ConnectX");
	stub.foreign = false;
	stub.limits.max_qp_rd_atom = 0;
	refused(&usual, -EOPNOTSUPP, "cannot do RDMA READ");
	stub.limits.max_qp_rd_atom = 16;
	stub.limits.max_sge_rd = DV_SGES_MAX - 1;
	refused(&usual, -EOPNOTSUPP, "takes 29 data segments in an RDMA READ; the engine needs 30");
	stub.limits.max_sge_rd = DV_SGES_MAX;
	stub.port.state = IBV_PORT_DOWN;
	refused(&usual, -ENETDOWN, "is not active (PORT_DOWN): check the cable and `ip link");
	stub.port.link_layer = IBV_LINK_LAYER_INFINIBAND;
	refused(&usual, -ENETDOWN, "subnet manager");
	stub.port.state = IBV_PORT_ACTIVE;
	stub.port.active_mtu = 0;
	stub.port.lid = 1;
	refused(&usual, -EPROTO, "MTU code 0");
}

static void look(struct dv_device *device, int expected, const char *words)
{
	assert_int_equal(dv_verbs_ops.port_look(device), expected);
	if (expected)
		assert_non_null(strstr(dv_error(), words));
}

/* The kernel registers GIDs at the first free index, so a flap of the link may exchange two. */
static void a_gid_that_moves_is_found_again(void **state)
{
	struct dv_device *device;
	struct dv_qp old = {0};

	stub.gid_count = 0;
	stub_gid(0, IBV_GID_TYPE_ROCE_V2, "fe80::1");
	stub_gid(1, IBV_GID_TYPE_ROCE_V2, "::ffff:10.0.0.2");
	stub_gid(2, IBV_GID_TYPE_ROCE_V2, "::ffff:10.0.0.1");
	device = stub_open();
	old.device = device;
	old.path = device->path;
	assert_int_equal(device->path.gid_index, 1);
	assert_false(dv_verbs_qp_stale(&old));
	stub_gid(1, IBV_GID_TYPE_ROCE_V2, "fe80::1");
	stub_gid(0, IBV_GID_TYPE_ROCE_V2, "::ffff:10.0.0.1");
	stub_gid(2, IBV_GID_TYPE_ROCE_V2, "::ffff:10.0.0.2");
	look(device, 0, NULL);
	/* the same address as before, although another one has a lower index */
	assert_int_equal(device->path.gid_index, 2);
	assert_true(dv_verbs_qp_stale(&old));
	old.path = device->path;
	stub_gid(2, IBV_GID_TYPE_ROCE_V2, "::ffff:10.0.0.3"); /* at the same index */
	look(device, 0, NULL);
	assert_int_equal(device->path.gid_index, 0);
	assert_true(dv_verbs_qp_stale(&old));
	stub_gid(0, IBV_GID_TYPE_ROCE_V1, "::ffff:10.0.0.1");
	stub_gid(1, IBV_GID_TYPE_ROCE_V1, "fe80::1");
	stub_gid(2, IBV_GID_TYPE_ROCE_V1, "::ffff:10.0.0.1");
	stub_gid(3, IBV_GID_TYPE_ROCE_V1, "::");
	look(device, -EADDRNOTAVAIL, "has no RoCE v2 GID");
	dv_verbs_ops.close(device);
}

static void a_port_without_a_link_can_be_opened_for_later(void **state)
{
	struct dv_options options = {.name = "mlx5_0", .gid_index = 1, .later = true};
	struct dv_device *device;

	stub.port.state = IBV_PORT_DOWN;
	stub.gid_count = 0;
	assert_int_equal(dv_verbs_ops.open(&options, &device), 0);
	look(device, -ENETDOWN, "is not active");
	stub.port.state = IBV_PORT_ACTIVE;
	look(device, -EADDRNOTAVAIL, "has no GID at index 1");
	stub_gid(1, IBV_GID_TYPE_ROCE_V2, "::ffff:10.0.0.1");
	stub.gids[0] = stub.gids[1];
	look(device, 0, NULL);
	assert_int_equal(device->path.gid_index, 1);
	dv_verbs_ops.close(device);
}

static void a_small_mtu_is_logged(void **state)
{
	char text[sizeof(stub.log)];

	stub.port.active_mtu = IBV_MTU_1024;
	stub.fail_at = 6; /* the protection domain fails, which comes after the warning */
	stub.fail_errno = EIO;
	refused(&usual, -EIO, "ibv_alloc_pd(mlx5_0)");
	strcpy(text, stub.log);
	assert_non_null(strstr(text, "RDMA MTU is 1024, not 4096"));
}

static void a_failure_at_any_step_frees_everything(void **state)
{
	struct dv_device *device = stub_open();
	unsigned steps = stub.calls;

	dv_verbs_ops.close(device);
	/*
	 * The 8 steps of dv_open(): device list, open, device, port, GIDs, PD, TD, parent domain.
	 * Each can fail.
	 */
	assert_int_equal(steps, 8);
	for (unsigned step = 1; step <= steps; step++) {
		stub.calls = 0;
		stub.fail_at = step;
		stub.fail_errno = ENOSPC;
		refused(&usual, -ENOSPC, "No space left on device");
		assert_int_equal(stub_teardown(NULL), 0);
	}
}

static void reads_in_flight_are_limited_to_sixteen(void **state)
{
	struct dv_device *device;

	stub.limits.max_qp_rd_atom = 128;
	stub.limits.max_qp_init_rd_atom = 4;
	device = stub_open();
	assert_int_equal(device->reads_in, 16);
	assert_int_equal(device->reads_out, 4);
	dv_verbs_ops.close(device);
}

/* Rows: text of the file in sysfs, setting rail.traffic_class, traffic class that must result. */
static void the_traffic_class_comes_from_sysfs_or_the_settings(void **state)
{
	static const struct {
		const char *file;
		int set, class;
	} rows[] = {{"Global tclass=106\n", -1, 106}, {"Global tclass=106\n", 0, 0},
		{"Global tclass=106\n", 96, 96}, {"160\n", -1, 160}, {"", -1, 0},
		{"Global tclass=999\n", -1, 0}, {"none\nGlobal tclass=8\n", -1, 8}};
	char folder[] = "/tmp/test-verbs-XXXXXX", path[128];

	assert_non_null(mkdtemp(folder));
	snprintf(path, sizeof(path), "%s/tc", folder);
	assert_int_equal(mkdir(path, 0700), 0);
	snprintf(path, sizeof(path), "%s/tc/1", folder);
	assert_int_equal(mkdir(path, 0700), 0);
	strcpy(stub_device.ibdev_path, folder);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct dv_options options = {
			.name = "mlx5_0", .gid_index = -1, .traffic_class = rows[i].set};
		struct dv_device *device;
		FILE *file;

		snprintf(path, sizeof(path), "%s/tc/1/traffic_class", folder);
		file = fopen(path, "w");
		fputs(rows[i].file, file);
		fclose(file);
		assert_int_equal(dv_verbs_ops.open(&options, &device), 0);
		assert_int_equal(device->traffic_class, rows[i].class);
		dv_verbs_ops.close(device);
		unlink(path);
	}
	snprintf(path, sizeof(path), "%s/tc/1", folder);
	rmdir(path);
	snprintf(path, sizeof(path), "%s/tc", folder);
	rmdir(path);
	rmdir(folder);
	stub_device.ibdev_path[0] = 0;
}

static void path_options_out_of_range_are_refused(void **state)
{
	struct dv_options options = {.name = "mlx5_0", .gid_index = -1, .traffic_class = 256};

	refused(&options, -EINVAL, "traffic class 256 (-1 to 255)");
	options.traffic_class = 0;
	options.service_level = 16;
	refused(&options, -EINVAL, "service level 16");
	options.service_level = 0;
	options.ack_timeout = 32;
	refused(&options, -EINVAL, "ACK time-out 32 (1 to 31)");
	options.ack_timeout = 0;
	options.pkey_index = 1;
	stub.port.pkey_tbl_len = 1;
	refused(&options, -EINVAL, "there is none at index 1: lower rail.pkey_index");
}

static void the_port_rate_is_lanes_times_lane_rate(void **state)
{
	static const struct {
		uint8_t speed, width;
		uint64_t bits;
	} rows[] = {{32, 2, 100000000000ull}, {64, 2, 200000000000ull}, {128, 4, 800000000000ull},
		{32, 1, 25000000000ull}, {16, 2, 56250000000ull}, {0, 2, 0}, {32, 0, 0}};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct ibv_port_attr port = {
			.active_speed = rows[i].speed, .active_width = rows[i].width};

		assert_true(port_bits_per_second(&port) == rows[i].bits);
	}
}

static void closing_a_device_with_memory_regions_is_logged(void **state)
{
	struct dv_device *device = stub_open();

	stub.alive.mr = 1;
	dv_verbs_ops.close(device);
	assert_non_null(strstr(stub.log, "closing mlx5_0"));
	assert_int_equal(stub.alive.pd, 1); /* the PD is not freed while a memory region uses it */
	stub.alive.pd = 0;
	stub.alive.mr = 0;
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		TEST(a_roce_port_is_opened_with_all_its_attributes),
		TEST(the_best_gid_of_the_table_is_chosen),
		TEST(the_gid_index_is_not_the_place_in_the_list),
		TEST(a_configured_gid_index_is_checked_and_used),
		TEST(infiniband_uses_its_lid_and_first_gid),
		TEST(unusable_devices_are_refused_with_a_reason),
		TEST(a_small_mtu_is_logged),
		TEST(a_failure_at_any_step_frees_everything),
		TEST(reads_in_flight_are_limited_to_sixteen),
		TEST(the_traffic_class_comes_from_sysfs_or_the_settings),
		TEST(path_options_out_of_range_are_refused),
		TEST(the_port_rate_is_lanes_times_lane_rate),
		TEST(closing_a_device_with_memory_regions_is_logged),
		TEST(a_gid_that_moves_is_found_again),
		TEST(a_port_without_a_link_can_be_opened_for_later),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
