mod demo; mod enqueue; mod work;
