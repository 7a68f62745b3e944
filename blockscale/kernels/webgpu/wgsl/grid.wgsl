// The number of a workgroup in a grid of two dimensions (gpu/launch.py).
fn group_number(group: vec3<u32>, groups: vec3<u32>) -> u32 {
    return group.x + group.y * groups.x;
}
